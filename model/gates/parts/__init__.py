"""The parts that gates share: the base class, the smooth-step, selection, noise, schedules.

Public face: every module.
"""
