"""The HTML report about one model, drawn from plain values; imports neither Keras nor TensorFlow.

Public face: `page.write_report`, and `data`, `elements` and `style` for other pages.
"""
