SELECT table, toFloat64(sum(rows)), toFloat64(sum(bytes_on_disk)), toFloat64(count())
FROM system.parts WHERE active AND database = ? AND table IN ? GROUP BY table
