"""Boosted trees (XGBoost): what they see of a table's columns, and what a trained booster gives."""
