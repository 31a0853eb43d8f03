"""The stages of the job: each works on one file or one bucket and knows the plan.

Public face: every module.
"""
