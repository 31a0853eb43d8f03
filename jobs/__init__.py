"""Whole jobs made of the packages' stages; the only package that may import all others."""
