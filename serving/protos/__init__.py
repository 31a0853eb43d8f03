"""The ranking protocol: `ranking.proto` and the code generated from it (`make protos`)."""
