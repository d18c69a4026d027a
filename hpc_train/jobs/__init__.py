"""Jobs as processes: started on this machine or by a scheduler."""
