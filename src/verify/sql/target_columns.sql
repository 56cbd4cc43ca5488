SELECT name, type FROM system.columns WHERE database = ? AND table = ? ORDER BY position
