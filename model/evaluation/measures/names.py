"""Measures as people write them, in reports, tables and messages."""

_NAMES = {
    "auc_unmatched": "AUC on unmatched rows",
    "gauc": "AUC within users",
    "log_loss": "log loss",
    "normalised_entropy": "normalised entropy",
    "ece": "calibration error",
    "predicted_over_observed": "predicted / observed",
    "calibration": "predicted / observed",
    "pinball": "pinball loss",
    "pinball_transformed": "pinball loss of the transformed label",
    "coverage": "coverage",
    "rmse_transformed": "RMSE of the transformed label",
    "relative_rmse": "RMSE over the label's deviation on the scale of training",
    "r2": "R²",
    "spearman": "Spearman",
    "bias": "bias",
    "recall@5": "recall@5",
    "recall@10": "recall@10",
}


def title(measure: str) -> str:
    """A measure as people write it: those with no name here are abbreviations, such as AUC."""
    return _NAMES.get(measure, measure.upper())
