"""The user's model: built, copied, compared, differentiated."""
