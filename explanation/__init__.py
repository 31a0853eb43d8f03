"""Why an item stands where it stands: what each feature adds to its scores, and what else decides.

Pure functions of scores, shared by the command, the server and the report.  `shapley` divides
scores among features and knows neither models nor formats; `groups` says which features go
together; `terms` divides the combined score among the tasks; `document` puts it all together.
"""
