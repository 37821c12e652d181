"""Datasets of tars, prepared by Energon or by us, or not at all."""
