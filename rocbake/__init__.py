"""Reproducible ROCm container images and archives."""
