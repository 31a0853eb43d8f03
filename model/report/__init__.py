"""The HTML report about one model; knows only plain values.

Public face: `page.write_report`, and `parts` and `style` for other pages.
"""
