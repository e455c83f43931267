"""The pre-training job."""
