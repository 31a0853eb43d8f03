"""The network: embeddings, mixture, one tower per task, and its training loss.

Public face: `ranker.Ranker`, `scores` (logits to scores, and labels to targets).
"""
