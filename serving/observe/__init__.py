"""What leaves the server beside answers: impression rows, drift, metrics over HTTP.

Public face: `impressions.ImpressionLog`, `drift.DriftMonitor`, `exporter`.
"""
