"""Exams that compare INT8 with fp32 before it is served, one for each kind of model."""
