"""A version's folder opened without a server, to explain what a server would answer."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from multigate.configs.errors import ServingError
from multigate.explanation.document import Explanation
from multigate.serving.client.packing import add_weights, model_spec, rank_request
from multigate.serving.core.layout import Arrays, value_dtype
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.feature_store.backends import open_feature_store
from multigate.serving.request.rank_request import RequestReader
from multigate.serving.versions.explaining import (
    Against,
    Background,
    Drawing,
    example_rows,
    explain_candidate,
    explain_row,
)
from multigate.serving.versions.folders import GRAPH, scan
from multigate.serving.versions.saved_model import SavedModel


class OpenedVersion:
    """A loaded version with its feature store.

    Args:
        folder: of the version.
        feature_store: as of `multigate serve`.

    Raises:
        LoadError: the folder is incomplete or damaged.
        ServingError: its snapshot is damaged.
    """

    def __init__(self, folder: Path, feature_store: str = "version") -> None:
        self.folder = folder
        self.name = folder.resolve().parent.name
        number = folder.resolve().name
        self.saved_model = SavedModel.load(int(number) if number.isdecimal() else 0, folder)
        contract = self.saved_model.contract
        options = ServerOptions(
            model_name=self.name, model_base_path=folder.parent, feature_store=feature_store
        )
        store = open_feature_store(
            self.name,
            folder,
            contract,
            self.saved_model.schema,
            feature_store,
            options.feature_store_timeout_ms / 1e3,
            options.feature_clock,
            ServerMetrics(),
        )
        self._reader = RequestReader(contract, options.max_candidates, store)

    def explain(
        self,
        request: Mapping[str, Any],
        item: str,
        against: Against,
        drawing: Drawing,
        background: Background | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Explanation:
        """Explain one candidate of a request.

        Args:
            request: as `client.request_file` reads it.
            item: the candidate's id, as text.
            against: what to compare with.
            drawing: how orders are drawn.
            background: other rows to compare with, whatever `against` says.
            check: called between runs of the model.

        Raises:
            ServingError: the request does not fit the contract, or the item is not in it.
        """
        id_ = self._item_id(item)
        items = request.get("items", [id_])
        if id_ not in items:
            raise ServingError(
                f"--item {item}: expected one of the request's {len(items)} items; received none "
                "of them; add it to the request's items, or leave them out to explain it alone"
            )
        message = rank_request(
            model_spec(self.name, None, ""),
            request.get("user", {}),
            request.get("context", {}),
            items,
            request.get("columns", {}),
        )
        add_weights(message, request.get("weights", {}))
        found = explain_candidate(
            self.saved_model,
            self.folder,
            self._reader.read(message),
            items.index(id_),
            against,
            drawing,
            check,
            background,
        )
        return self._named(found)

    def explain_example(
        self,
        row: Arrays,
        drawing: Drawing,
        background: Background | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Explanation:
        """Explain an example's row, inputs of `serving_default` with one row."""
        if background is None:
            background = example_rows(self.saved_model, self.folder)
        found = explain_row(self.saved_model, row, background, drawing, check=check)
        return self._named(found)

    def _item_id(self, text: str) -> str | int:
        """An item's id in the type of the model's ids."""
        contract = self.saved_model.contract
        if value_dtype(contract.features[contract.item]) == "string":
            return text
        try:
            return int(text)
        except ValueError:
            raise ServingError(
                f"--item: expected a whole number, as {contract.item!r} is, received {text!r}"
            ) from None

    def _named(self, found: Explanation) -> Explanation:
        found["model"], found["version"] = self.name, self.saved_model.version
        return found


def find_version(path: Path) -> Path:
    """The version that a path names: itself, or the newest of a base folder, or of a run.

    Args:
        path: a version's folder; a base folder of versions; a night's run, which holds `export/`;
            or the folder of `multigate demo`, which holds `models/NAME/`.

    Raises:
        ServingError: there is no version, or there are several models.
    """
    if (path / GRAPH).is_file():
        return path
    bases = [path, path / "export", *sorted((path / "models").glob("*"))]
    found = [versions for base in bases if (versions := list(scan(base).values()))]
    if len(found) > 1:
        raise ServingError(
            f"{path}: expected one model's versions, received those of "
            f"{' and '.join(str(versions[0].parent) for versions in found)}; name one of them"
        )
    if not found or not (found[0][0] / GRAPH).is_file():
        raise ServingError(
            f"{path}: expected an exported version (with {GRAPH}), a folder of versions or a run "
            "that exported one, found none; give the folder that export wrote"
        )
    return found[0][0]
