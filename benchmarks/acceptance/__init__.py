"""The parts of gpu.py: what a site sees in its first hour."""
