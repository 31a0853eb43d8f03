"""The parts that gates share: the base class, the smooth-step, selection, noise, schedules.

Public face: `base.Gate`, `base.Routing`, `base.Properties`, `smooth_step.smooth_step`.
"""
