"""The parts that gates share: base class, registry, smooth-step, selection, noise, schedules.

Public face: every module.
"""
