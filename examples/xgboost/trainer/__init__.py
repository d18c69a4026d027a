"""An XGBoost training program that runs as a job of several ranks."""
