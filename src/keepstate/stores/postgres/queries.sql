-- The client's statements. A function returns one value: a record, or packed bytes.

-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED

-- name: commit
COMMIT

-- name: apply
SELECT {schema}.apply_1(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24,
    $25, $26
)

-- name: put
SELECT {schema}.put_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)

-- name: drop
SELECT {schema}.drop_2($1, $2, $3, $4, $5, $6)

-- name: trim
SELECT {schema}.trim_space_2($1, $2, $3, $4)

-- name: get
SELECT {schema}.get_1($1, $2, $3)

-- name: get, kept
-- The same as get_1, for prepared statements. Planned once, it takes four fifths of the function's time. Planned for
-- each call, it takes five times as long.
SELECT coalesce(
    (SELECT int8send(s.revision) || int8send(s.floor)
        || CASE WHEN s.nonce = '' THEN int8send(0) ELSE s.nonce END
        || CASE WHEN $3::bigint < s.revision AND $3::bigint >= s.floor AND $3::bigint > 0
            THEN coalesce({schema}.marked_1(s.id, $3::bigint), int8send(0)) ELSE int8send(0) END
        || int8send(greatest(s.clock_ms, (date_part('epoch', clock_timestamp()) * 1000)::bigint))
        || int8send(s.clock_ms)
        || coalesce(
            (SELECT int8send(e.version) || int8send(e.created) || int8send(coalesce(e.expires_at_ms, 0))
                || e.value FROM {schema}.entry e WHERE e.space_id = s.id AND e.key = $2::bytea),
            decode(repeat('00', 24), 'hex'))
        FROM {schema}.space s WHERE s.name = $1::bytea),
    decode(repeat('00', 32), 'hex') || int8send({schema}.now_1(0)) || decode(repeat('00', 32), 'hex')
)

-- name: plan
-- For a connection that keeps prepared statements: each is planned once, with its keys.
SELECT set_config(s.name, s.value, false) FROM (VALUES
    ('plan_cache_mode', 'force_generic_plan'), ('jit', 'off'), ('enable_seqscan', 'off'),
    ('enable_bitmapscan', 'off')
) s(name, value)

-- name: read
SELECT {schema}.read_2($1, $2, $3, $4, $5)

-- name: scan
SELECT {schema}.scan_1($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: sizes
SELECT {schema}.sizes_1($1, $2)

-- name: changes
SELECT {schema}.changes_1($1, $2, $3, $4, $5)

-- name: expired
SELECT {schema}.expired_1($1, $2)

-- name: spaces
-- Names of spaces with entries: from $1, below $2 if given, above $3, at most $4.
SELECT array_agg(listed.name) FROM (
    SELECT s.name FROM {schema}.space s
    WHERE s.revision > s.floor AND s.name >= $1::bytea AND s.name > $3::bytea
        AND ($2::bytea IS NULL OR s.name < $2::bytea)
    ORDER BY s.name LIMIT $4::bigint
) listed

-- name: leap
SELECT s.leap FROM {schema}.space s WHERE s.name = $1::bytea

-- name: changed
-- The time of the last revision of each of the spaces $1.
SELECT array_agg(s.name), array_agg(s.clock_ms) FROM {schema}.space s
WHERE s.name = ANY($1::bytea[]) AND s.revision > 0

-- name: revisions
SELECT array_agg(s.name), array_agg(s.revision) FROM {schema}.space s WHERE s.name = ANY($1::bytea[])

-- name: look
-- Whether schema $1 exists, whether it has the table that is created last, and which of the functions $2 it has.
SELECT
    EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname = convert_from($1::bytea, 'UTF8')),
    EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = convert_from($1::bytea, 'UTF8') AND c.relname = 'layout'),
    (SELECT array_agg(convert_to(p.proname::text, 'UTF8')) FROM pg_catalog.pg_proc p
        JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = convert_from($1::bytea, 'UTF8')
            AND convert_to(p.proname::text, 'UTF8') = ANY($2::bytea[]))

-- name: creators
-- A lock until the end of the transaction, so that one process creates the schema and the others then find it.
SELECT pg_advisory_xact_lock(7738429601394516)

-- name: create_schema
CREATE SCHEMA {schema}

-- name: layout
SELECT max(l.version) FROM {schema}.layout l

-- name: backend
SELECT pg_backend_pid()::bigint

-- name: settings
SELECT
    pg_is_in_recovery(), current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on',
    current_setting('synchronous_commit') <> 'off',
    current_setting('synchronous_standby_names') = '' AND EXISTS (SELECT FROM pg_catalog.pg_stat_replication),
    current_setting('server_version_num')::bigint

-- name: settings_listed
-- The settings that decide durability: name, value and source of each; and whether a standby follows.
SELECT
    array_agg(convert_to(s.name, 'UTF8')), array_agg(convert_to(s.setting, 'UTF8')),
    array_agg(convert_to(s.source, 'UTF8')), EXISTS (SELECT FROM pg_catalog.pg_stat_replication)
FROM pg_catalog.pg_settings s
WHERE s.name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names')
