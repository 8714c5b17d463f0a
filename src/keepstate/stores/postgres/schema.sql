-- The tables of one store. Names and keys are bytea, so that any text is ordered by bytes, whatever the collation.

-- name: space
-- One row for each space: its counter, and the facts for checking a batch. A row outlives its space, so that a
-- space that is created again continues from its last revision.
CREATE TABLE {schema}.space (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    revision bigint NOT NULL DEFAULT 0,
    floor bigint NOT NULL DEFAULT 0,
    clock_ms bigint NOT NULL DEFAULT 0,
    log_bytes bigint NOT NULL DEFAULT 0,
    next_expiry_ms bigint NOT NULL DEFAULT 9223372036854775807, -- no entry expires earlier
    kept_until_ms bigint NOT NULL DEFAULT 0, -- no retry is stored for longer
    nonce bytea NOT NULL DEFAULT '',
    floor_nonce bytea NOT NULL DEFAULT '', -- nonce of the floor's revision
    parts bytea[] NOT NULL DEFAULT '{}',
    part_sizes bigint[] NOT NULL DEFAULT '{}', -- entries and bytes of each part
    leap bigint[], -- the last leap of its time: revision, time before, time after
    name bytea NOT NULL UNIQUE
) WITH (fillfactor = 50); -- each flush rewrites the row; room on the page avoids index updates

-- name: entry
CREATE TABLE {schema}.entry (
    space_id bigint NOT NULL,
    version bigint NOT NULL,
    created bigint NOT NULL,
    expires_at_ms bigint,
    key bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (space_id, key)
) WITH (fillfactor = 90);

-- name: entry_storage
-- Values over 4 KiB are compressed already; compressing them again only costs time.
ALTER TABLE {schema}.entry ALTER COLUMN value SET STORAGE EXTERNAL;

-- name: entry_expiry
CREATE INDEX entry_expiry ON {schema}.entry (space_id, expires_at_ms, key) WHERE expires_at_ms IS NOT NULL;

-- name: log
-- One row for each revision above the floor. The arrays are parallel, one element for each change. Section 00 is not
-- logged.
CREATE TABLE {schema}.log (
    space_id bigint NOT NULL,
    revision bigint NOT NULL,
    now_ms bigint NOT NULL,
    size_bytes bigint NOT NULL,
    nonce bytea NOT NULL,
    token bytea,
    keys bytea[] NOT NULL,
    deleted boolean[] NOT NULL,
    olds bytea[] NOT NULL,
    news bytea[] NOT NULL,
    expired boolean[], -- null if no change replaced an expired entry
    PRIMARY KEY (space_id, revision)
);

-- name: log_storage
ALTER TABLE {schema}.log ALTER COLUMN olds SET STORAGE EXTERNAL, ALTER COLUMN news SET STORAGE EXTERNAL;

-- name: log_token
-- An expression, so that the search for a token can use no other index.
CREATE UNIQUE INDEX log_token ON {schema}.log ((int8send(space_id) || token)) WHERE token IS NOT NULL;

-- name: retry
-- Results of retries, stored for an hour, also after the log is trimmed or the space dropped. A late original gets
-- the same answer. `verdict` and the other columns as in `apply_1`.
CREATE TABLE {schema}.retry (
    space_id bigint NOT NULL,
    kept_until_ms bigint NOT NULL,
    verdict bigint NOT NULL,
    actual bigint NOT NULL,
    at_ms bigint NOT NULL,
    token bytea NOT NULL,
    key bytea,
    PRIMARY KEY (space_id, token)
);

-- name: layout
CREATE TABLE {schema}.layout (version bigint NOT NULL);

-- name: layout_version
INSERT INTO {schema}.layout VALUES (1);
