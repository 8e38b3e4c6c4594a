"""Start the tritonserver that nvidia-pytriton carries, for machines without Docker."""
