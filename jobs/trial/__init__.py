"""Judges a version on trial by what servers logged of it: the canary's users, the shadow's calls.

Public face: `judge.judge`, `show.show_trial`.
"""
