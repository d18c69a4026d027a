"""What a job is: frozen, validated where it is made, the same for the Python API and for the job file."""
