"""Helpers shared by tests: tiny real models and scripted fakes."""
