"""What a task makes of samples: task encoders and collation."""
