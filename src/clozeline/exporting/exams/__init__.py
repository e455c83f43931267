"""Exams on which INT8 is compared with fp32 before it may serve, one for each kind of model."""
