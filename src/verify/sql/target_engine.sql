SELECT engine FROM system.tables WHERE database = ? AND name = ?
