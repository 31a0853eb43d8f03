"""Exact measures of scores against labels, each with its bootstrap replicates.

Every function takes a `Resamples` and returns, by name, the measure's value on the sample itself
followed by its value on each resample, (1 + R,); `interval` turns that into a number with its
limits.  A measure is thus one function, computed in one place, for value and interval alike.
NaN stands for a value that does not exist, such as the AUC of one class.

Public face: every module.
"""
