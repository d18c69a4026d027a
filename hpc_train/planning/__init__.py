"""What ranks will hold and exchange, found out before a job is queued: from its model, without training it."""
