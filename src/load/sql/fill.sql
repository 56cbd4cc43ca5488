-- Rows $1 to $2 of a fill. The payload is $3 characters long: the row's number, which makes it unique, and hexadecimal
-- digits of a slice of the random bytes $4 (cheaper than hashing, and as hard to compress).
insert into {table} (batch, payload)
select
    (row_number / 100)::int,
    left(
        to_hex(row_number) || encode(
            substr($4::bytea, (row_number * 7919 % (length($4) - $3 / 2))::int + 1, $3 / 2 + 1),
            'hex'
        ),
        $3::int
    )
from generate_series($1::bigint, $2::bigint) as row_number
