"""Exact measures of scores against labels, each with its bootstrap replicates.

Functions take a `Resamples` and return, by measure, the value on the sample itself followed
by the values on each resample, (1 + R,); `interval` turns them into a number with its limits.  One
function thus computes value and interval alike.  NaN stands for a value that does not exist, such
as the AUC of one class.

Public face: every module.
"""
