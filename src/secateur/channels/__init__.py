"""Channel groups and their ties."""
