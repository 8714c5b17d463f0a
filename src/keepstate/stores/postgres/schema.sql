-- The tables of one store. Names and keys are bytea: any text, ordered by bytes whatever the collation.

-- name: space
-- One row a space: its counter, and what must be known before any batch is judged. A row outlives its
-- space, so that a space made again continues from its last revision.
CREATE TABLE {schema}.space (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    revision bigint NOT NULL DEFAULT 0,
    floor bigint NOT NULL DEFAULT 0,
    clock_ms bigint NOT NULL DEFAULT 0,
    log_bytes bigint NOT NULL DEFAULT 0,
    next_expiry_ms bigint NOT NULL DEFAULT 9223372036854775807, -- no entry expires before
    kept_until_ms bigint NOT NULL DEFAULT 0, -- no retry is kept beyond
    nonce bytea NOT NULL DEFAULT '',
    floor_nonce bytea NOT NULL DEFAULT '', -- of the revision that is the floor
    leap bigint[], -- the last leap of its time: revision, time before, time after
    name bytea NOT NULL UNIQUE
) WITH (fillfactor = 50); -- rewritten by every flush: room on the page keeps its index as it is

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
-- Values over 4 KiB come compressed: to try again only costs time.
ALTER TABLE {schema}.entry ALTER COLUMN value SET STORAGE EXTERNAL;

-- name: entry_expiry
CREATE INDEX entry_expiry ON {schema}.entry (space_id, expires_at_ms, key) WHERE expires_at_ms IS NOT NULL;

-- name: log
-- One row a revision above the floor. The arrays run side by side, one element a change; section 00
-- leaves none.
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
    expired boolean[], -- null where no change was made over an expired entry
    PRIMARY KEY (space_id, revision)
);

-- name: log_storage
ALTER TABLE {schema}.log ALTER COLUMN olds SET STORAGE EXTERNAL, ALTER COLUMN news SET STORAGE EXTERNAL;

-- name: log_token
-- One expression, so that the look for a token can take no other index than this one.
CREATE UNIQUE INDEX log_token ON {schema}.log ((int8send(space_id) || token)) WHERE token IS NOT NULL;

-- name: retry
-- What became of retries, kept for an hour beyond log and drop: an original that comes late is answered
-- alike. `verdict` and the rest as in `apply_1`.
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
