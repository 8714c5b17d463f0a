-- Server functions that change a space. A function's number is part of its name, and the meaning of a numbered
-- function never changes: clients of other versions call it as long as the store exists.
--
-- PostgreSQL plans a statement once for each session, often while the tables are still empty and a full scan
-- looks cheap. So `{settings}` makes the functions that clients call, and the functions that these call, use
-- indexes.
--
-- Verdicts of a batch: 1 applied; 2 conflict; 3 unknown, because the log no longer reaches back to the first
-- attempt; 4 a stamped key equals another key of the batch; 5 the space lost the caller's mark; 8 the space's
-- time would leap, and the caller's clock does not confirm it.

-- name: now_1
-- The space's time: the server's clock, or the space's own last time if that is later.
CREATE FUNCTION {schema}.now_1(p_clock_ms bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT greatest(p_clock_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;

-- name: leaps_1
-- True if a space's time would leap by more than an hour and the client's clock does not confirm it.
CREATE FUNCTION {schema}.leaps_1(p_clock_ms bigint, p_now_ms bigint, p_client_ms bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_now_ms - p_clock_ms > 3600000 AND abs(p_now_ms - p_client_ms) > 3600000
$$;

-- name: leap_1
-- The last leap of a space's time after the write of `p_revision`: the leap of this write, or the earlier one.
CREATE FUNCTION {schema}.leap_1(p_leap bigint[], p_revision bigint, p_clock_ms bigint, p_now_ms bigint)
RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_now_ms - p_clock_ms > 3600000 THEN ARRAY[p_revision, p_clock_ms, p_now_ms]
        ELSE p_leap END
$$;

-- name: stamped_1
-- A key with its stamp, as `stamp_suffix` makes it; the plain key if there is no index.
CREATE FUNCTION {schema}.stamped_1(p_key bytea, p_revision bigint, p_index bigint) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_index IS NULL THEN p_key
        ELSE p_key || '\x{stamp}'::bytea || int8send(p_revision) || int2send(p_index::int2) END
$$;

-- name: count_1
-- Adds entries and bytes to the part of a key, as `part_sizes.py` does: the two must agree for ever.
CREATE FUNCTION {schema}.count_1(
    INOUT parts bytea[], INOUT part_sizes bigint[], p_key bytea, p_entries bigint, p_bytes bigint
) LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    part bytea := substring(p_key FROM 1 FOR 1);
    stop int;
    place int;
BEGIN
    IF length(p_key) > 2 AND get_byte(p_key, 1) = {text_tag} THEN
        stop := position(decode('00', 'hex') IN substring(p_key FROM 3 FOR {part_bytes} - 2));
        IF stop > 0 THEN
            part := substring(p_key FROM 1 FOR stop + 2);
        END IF;
    END IF;
    place := array_position(parts, part);
    IF place IS NULL AND cardinality(parts) >= {counted_parts} THEN
        part := substring(p_key FROM 1 FOR 1);
        place := array_position(parts, part);
    END IF;
    IF place IS NULL THEN
        parts := array_append(parts, part);
        place := cardinality(parts);
        part_sizes := part_sizes || ARRAY[0, 0]::bigint[];
    END IF;
    part_sizes[2 * place - 1] := part_sizes[2 * place - 1] + p_entries;
    part_sizes[2 * place] := part_sizes[2 * place] + p_bytes;
END $$;

-- name: lost_1
-- True if a space no longer has the revision that a client saw. Unknown, and so false, below the floor.
CREATE FUNCTION {schema}.lost_1(p_space {schema}.space, p_mark bigint, p_nonce bytea) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_mark >= p_space.revision THEN
        RETURN p_mark > p_space.revision OR p_nonce <> p_space.nonce;
    ELSIF p_mark = p_space.floor THEN
        RETURN p_nonce <> p_space.floor_nonce;
    END IF;
    RETURN p_mark > p_space.floor AND NOT EXISTS (
        SELECT FROM {schema}.log l
        WHERE l.space_id = p_space.id AND l.revision = p_mark AND l.nonce = p_nonce
    );
END $$;

-- name: sweep_1
-- Removes up to `p_limit` expired entries and about `p_bytes` of values, as one revision if there are any.
-- Returns their number, the size of their log record, and the time when the next entry expires.
CREATE FUNCTION {schema}.sweep_1(
    p_space_id bigint, p_revision bigint, p_now_ms bigint, p_limit bigint, p_bytes bigint, p_nonce bytea,
    INOUT parts bytea[], INOUT part_sizes bigint[],
    OUT swept bigint, OUT size_bytes bigint, OUT next_expiry_ms bigint
) LANGUAGE plpgsql AS $$
DECLARE
    expired record;
    removed_bytes bigint := 0;
    keys bytea[] := '{}';
    deleted boolean[] := '{}';
    olds bytea[] := '{}';
    news bytea[] := '{}';
BEGIN
    swept := 0;
    size_bytes := 64;
    FOR expired IN
        SELECT e.key, e.value FROM {schema}.entry e
        WHERE e.space_id = p_space_id AND e.expires_at_ms <= p_now_ms
        ORDER BY e.expires_at_ms, e.key LIMIT p_limit
    LOOP
        removed_bytes := removed_bytes + length(expired.value);
        EXIT WHEN removed_bytes > p_bytes AND swept > 0;
        DELETE FROM {schema}.entry e WHERE e.space_id = p_space_id AND e.key = expired.key;
        swept := swept + 1;
        SELECT * INTO parts, part_sizes FROM {schema}.count_1(
            parts, part_sizes, expired.key, -1, -length(expired.key) - length(expired.value)
        );
        CONTINUE WHEN get_byte(expired.key, 0) = 0;
        IF get_byte(expired.key, 0) = 1 THEN
            expired.value := NULL;
        END IF;
        size_bytes := size_bytes + 64 + length(expired.key) + coalesce(length(expired.value), 0);
        keys := array_append(keys, expired.key);
        deleted := array_append(deleted, true);
        olds := array_append(olds, expired.value);
        news := array_append(news, NULL);
    END LOOP;
    IF swept > 0 THEN
        INSERT INTO {schema}.log (space_id, revision, now_ms, size_bytes, nonce, keys, deleted, olds, news)
        VALUES (p_space_id, p_revision, p_now_ms, sweep_1.size_bytes, p_nonce, keys, deleted, olds, news);
    END IF;
    next_expiry_ms := coalesce((
        SELECT e.expires_at_ms FROM {schema}.entry e
        WHERE e.space_id = p_space_id AND e.expires_at_ms IS NOT NULL
        ORDER BY e.expires_at_ms, e.key LIMIT 1
    ), 9223372036854775807);
END $$;

-- name: is_long_1
-- True if a log must be trimmed. It may exceed its limits a little, so that not every flush trims.
CREATE FUNCTION {schema}.is_long_1(
    p_revisions bigint, p_bytes bigint, p_most_revisions bigint, p_most_bytes bigint
) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_revisions > p_most_revisions + p_most_revisions / 16
        OR p_bytes > p_most_bytes + p_most_bytes / 64
$$;

-- name: trim_1
-- Trims the oldest records, at most 1,000, until the log is within its limits. The newest record always stays.
CREATE FUNCTION {schema}.trim_1(
    p_space_id bigint, p_revision bigint, p_bytes bigint, p_most_revisions bigint, p_most_bytes bigint,
    OUT floor bigint, OUT cut_bytes bigint, OUT floor_nonce bytea
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT max(r.revision), sum(r.size_bytes) INTO floor, cut_bytes
    FROM (
        SELECT l.revision, l.size_bytes, sum(l.size_bytes) OVER (ORDER BY l.revision) - l.size_bytes AS before
        FROM {schema}.log l
        WHERE l.space_id = p_space_id AND l.revision < p_revision
        ORDER BY l.revision LIMIT 1000
    ) r
    WHERE r.revision <= p_revision - p_most_revisions OR p_bytes - r.before > p_most_bytes;
    SELECT l.nonce INTO floor_nonce FROM {schema}.log l
    WHERE l.space_id = p_space_id AND l.revision = trim_1.floor;
    DELETE FROM {schema}.log l WHERE l.space_id = p_space_id AND l.revision <= trim_1.floor;
END $$;

-- name: judge_1
-- The verdict against a batch, or null if it may be applied. `p_check` and `p_write` are the indexes of its
-- first check and its first write.
CREATE FUNCTION {schema}.judge_1(
    p_space {schema}.space, p_now_ms bigint, p_at bigint, p_alive_until bigint, p_retry_of bigint,
    p_check_keys bytea[], p_check_versions bigint[], p_check_createds bigint[], p_check int, p_checks bigint,
    p_keys bytea[], p_stamps bigint[], p_write int, p_collisions bigint,
    OUT verdict bigint, OUT actual bigint, OUT conflict bytea
) LANGUAGE plpgsql AS $$
DECLARE
    found_version bigint;
    found_created bigint;
BEGIN
    actual := p_space.revision;
    IF p_retry_of < p_space.floor THEN
        verdict := 3;
    ELSIF p_at <> p_space.revision OR p_alive_until <= p_now_ms THEN
        verdict := 2;
    END IF;
    FOR c IN p_check .. p_check + p_checks - 1 LOOP
        EXIT WHEN verdict IS NOT NULL;
        SELECT e.version, e.created INTO found_version, found_created FROM {schema}.entry e
        WHERE e.space_id = p_space.id AND e.key = p_check_keys[c]
            AND (e.expires_at_ms IS NULL OR e.expires_at_ms > p_now_ms);
        IF p_check_versions[c] IS NULL THEN
            found_version := found_created;
        END IF;
        IF coalesce(found_version, 0) <> coalesce(p_check_versions[c], p_check_createds[c]) THEN
            verdict := 2;
            actual := coalesce(found_version, 0);
            conflict := p_check_keys[c];
        END IF;
    END LOOP;
    IF verdict IS NULL AND p_collisions > 0 AND EXISTS (
        SELECT FROM generate_series(p_write, p_write + p_collisions - 1) stamped,
            generate_series(p_write, p_write + p_collisions - 1) plain
        WHERE p_stamps[stamped] IS NOT NULL AND p_stamps[plain] IS NULL
            AND p_keys[plain] = {schema}.stamped_1(p_keys[stamped], p_space.revision + 1, p_stamps[stamped])
    ) THEN
        verdict := 4;
    END IF;
END $$;

-- name: replaced_1
-- The bytes of the values that a batch replaces or deletes, which the log would keep.
CREATE FUNCTION {schema}.replaced_1(
    p_space {schema}.space, p_keys bytea[], p_stamps bigint[], p_write int, p_writes bigint
) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(length(e.value)), 0)::bigint
    FROM generate_series(p_write, p_write + p_writes - 1) AS w, {schema}.entry e
    WHERE get_byte(p_keys[w], 0) = 2
        AND e.space_id = p_space.id
        AND e.key = {schema}.stamped_1(p_keys[w], p_space.revision + 1, p_stamps[w]);
$$;

-- name: write_1
-- Applies the writes of a batch as the revision of `p_space`, deletes last, and returns the size of their log
-- record, and the sizes of the space's parts after it.
CREATE FUNCTION {schema}.write_1(
    p_space {schema}.space, p_now_ms bigint, p_token bytea,
    p_keys bytea[], p_values bytea[], p_ttls bigint[], p_stamps bigint[], p_write int, p_writes bigint,
    OUT size bigint, OUT parts bytea[], OUT part_sizes bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    this_key bytea;
    section int;
    old bytea;
    old_bytes bigint;
    new bytea;
    keys bytea[] := '{}';
    deleted boolean[] := '{}';
    olds bytea[] := '{}';
    news bytea[] := '{}';
    is_expired boolean;
    expired boolean[] := '{}';
BEGIN
    size := 64;
    parts := p_space.parts;
    part_sizes := p_space.part_sizes;
    FOR w IN p_write .. p_write + p_writes - 1 LOOP
        this_key := {schema}.stamped_1(p_keys[w], p_space.revision, p_stamps[w]);
        section := get_byte(this_key, 0);
        new := p_values[w];
        is_expired := false;
        IF new IS NULL THEN
            DELETE FROM {schema}.entry e WHERE e.space_id = p_space.id AND e.key = this_key
            RETURNING e.value INTO old;
            CONTINUE WHEN NOT FOUND;
            old_bytes := length(old);
        ELSE
            -- The statement's subqueries still see the entry as it was before the write.
            INSERT INTO {schema}.entry AS e (space_id, version, created, expires_at_ms, key, value)
            VALUES (p_space.id, p_space.revision, p_space.revision, p_now_ms + p_ttls[w], this_key, new)
            ON CONFLICT (space_id, key) DO UPDATE SET
                version = excluded.version,
                created = CASE WHEN e.expires_at_ms <= p_now_ms THEN excluded.created ELSE e.created END,
                expires_at_ms = excluded.expires_at_ms,
                value = excluded.value
            RETURNING CASE WHEN section = 2 THEN (
                SELECT o.value FROM {schema}.entry o WHERE o.space_id = p_space.id AND o.key = this_key
            ) END, CASE WHEN section < 2 THEN (
                SELECT length(o.value) FROM {schema}.entry o
                WHERE o.space_id = p_space.id AND o.key = this_key
            ) END, e.created = p_space.revision INTO old, old_bytes, is_expired;
            old_bytes := coalesce(old_bytes, length(old));
            -- A write over a live entry does not create it, so the old entry must have expired.
            is_expired := is_expired AND old IS NOT NULL;
        END IF;
        SELECT * INTO parts, part_sizes FROM {schema}.count_1(
            parts, part_sizes, this_key,
            (new IS NOT NULL)::int - (old_bytes IS NOT NULL)::int,
            coalesce(length(this_key) + length(new), 0) - coalesce(length(this_key) + old_bytes, 0)
        );
        CONTINUE WHEN section = 0;
        keys := array_append(keys, this_key);
        deleted := array_append(deleted, new IS NULL);
        IF section = 1 THEN
            old := NULL;
            new := NULL;
        END IF;
        olds := array_append(olds, old);
        news := array_append(news, new);
        expired := array_append(expired, is_expired);
        size := size + 64 + length(this_key) + coalesce(length(old), 0) + coalesce(length(new), 0);
    END LOOP;
    INSERT INTO {schema}.log (
        space_id, revision, now_ms, size_bytes, nonce, token, keys, deleted, olds, news, expired
    )
    VALUES (
        p_space.id, p_space.revision, p_now_ms, size, p_space.nonce, p_token, keys, deleted, olds, news,
        CASE WHEN true = ANY (expired) THEN expired END
    );
END $$;

-- name: known_1
-- The answer that a token already got, from the log or from a stored retry.
CREATE FUNCTION {schema}.known_1(
    p_space {schema}.space, p_now_ms bigint, p_token bytea,
    OUT verdict bigint, OUT actual bigint, OUT at_ms bigint, OUT conflict bytea
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT 1, l.revision, l.now_ms INTO verdict, actual, at_ms FROM {schema}.log l
    WHERE l.token IS NOT NULL AND int8send(l.space_id) || l.token = int8send(p_space.id) || p_token;
    IF verdict IS NULL AND p_space.kept_until_ms > p_now_ms THEN
        SELECT r.verdict, r.actual, r.at_ms, r.key INTO verdict, actual, at_ms, conflict
        FROM {schema}.retry r
        WHERE r.space_id = p_space.id AND r.token = p_token AND r.kept_until_ms > p_now_ms;
    END IF;
END $$;

-- name: keep_1
-- Stores the result of a retry, and deletes expired results.
CREATE FUNCTION {schema}.keep_1(
    p_space {schema}.space, p_now_ms bigint, p_token bytea, p_verdict bigint, p_actual bigint, p_key bytea
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.retry r WHERE r.space_id = p_space.id AND r.kept_until_ms <= p_now_ms;
    INSERT INTO {schema}.retry (space_id, kept_until_ms, verdict, actual, at_ms, token, key)
    VALUES (p_space.id, p_space.kept_until_ms, p_verdict, p_actual, p_now_ms, p_token, p_key)
    ON CONFLICT (space_id, token) DO NOTHING;
END $$;

-- name: apply_1
-- Checks and applies the batches of one flush. All arguments are parallel arrays: spaces in the order of their
-- names, batches by space, checks and writes by batch, a batch's deletes after its puts (the order of the
-- log). A batch is checked before its first write, so it needs no savepoint.
CREATE FUNCTION {schema}.apply_1(
    p_spaces bytea[], p_marks bigint[], p_mark_nonces bytea[], p_sweeps bigint[], p_sweep_nonces bytea[],
    p_batches bigint[],
    p_ats bigint[], p_alive_untils bigint[], p_retries bigint[], p_tokens bytea[], p_nonces bytea[], p_collisions bigint[],
    p_soonest bigint[], p_checks bigint[], p_writes bigint[],
    p_check_keys bytea[], p_check_versions bigint[], p_check_createds bigint[],
    p_keys bytea[], p_values bytea[], p_ttls bigint[], p_stamps bigint[],
    p_log_revisions bigint, p_log_bytes bigint, p_sweep_bytes bigint, p_client_ms bigint,
    OUT verdicts bigint[], OUT actuals bigint[], OUT times bigint[], OUT conflicts bytea[],
    OUT revisions bigint[], OUT nonces bytea[], OUT swept bigint[]
) LANGUAGE plpgsql
{settings} AS $$
DECLARE
    space {schema}.space;
    was {schema}.space;
    now_ms bigint;
    is_lost boolean;
    is_leap boolean;
    b int := 0;
    check_place int := 1;
    write_place int := 1;
    verdict bigint;
    actual bigint;
    at_ms bigint;
    conflict bytea;
    size bigint;
BEGIN
    FOR s IN 1 .. cardinality(p_spaces) LOOP
        LOOP
            SELECT * INTO space FROM {schema}.space x WHERE x.name = p_spaces[s] FOR NO KEY UPDATE;
            EXIT WHEN FOUND;
            INSERT INTO {schema}.space (name) VALUES (p_spaces[s]) ON CONFLICT DO NOTHING;
        END LOOP;
        was := space;
        now_ms := {schema}.now_1(space.clock_ms);
        is_leap := {schema}.leaps_1(space.clock_ms, now_ms, p_client_ms);
        is_lost := p_marks[s] > 0 AND {schema}.lost_1(space, p_marks[s], p_mark_nonces[s]);
        FOR _ IN 1 .. p_batches[s] LOOP
            b := b + 1;
            verdict := CASE WHEN is_lost THEN 5 ELSE 8 END;
            actual := space.revision;
            at_ms := now_ms;
            conflict := NULL;
            IF NOT is_lost AND NOT is_leap THEN
                SELECT * INTO verdict, actual, at_ms, conflict
                FROM {schema}.known_1(space, now_ms, p_tokens[b]);
            END IF;
            IF verdict IS NULL THEN
                at_ms := now_ms;
                SELECT * INTO verdict, actual, conflict FROM {schema}.judge_1(
                    space, now_ms, p_ats[b], p_alive_untils[b], p_retries[b],
                    p_check_keys, p_check_versions, p_check_createds, check_place, p_checks[b],
                    p_keys, p_stamps, write_place, p_collisions[b]
                );
                -- Up to 64 values, of at most 1 MiB each, always fit into one record.
                IF verdict IS NULL AND p_writes[b] > 64 AND p_log_bytes < {schema}.replaced_1(
                    space, p_keys, p_stamps, write_place, p_writes[b]
                ) THEN
                    verdict := 7;
                END IF;
                IF verdict IS NULL AND p_writes[b] > 0 THEN
                    space.revision := space.revision + 1;
                    space.nonce := p_nonces[b];
                    SELECT x.size, x.parts, x.part_sizes INTO size, space.parts, space.part_sizes
                    FROM {schema}.write_1(
                        space, now_ms, p_tokens[b],
                        p_keys, p_values, p_ttls, p_stamps, write_place, p_writes[b]
                    ) x;
                    space.log_bytes := space.log_bytes + size;
                    space.next_expiry_ms := least(space.next_expiry_ms, now_ms + p_soonest[b]);
                    actual := space.revision;
                END IF;
                IF p_retries[b] IS NOT NULL AND (verdict IS NOT NULL OR p_writes[b] > 0) THEN
                    space.kept_until_ms := now_ms + 3600000;
                    PERFORM {schema}.keep_1(
                        space, now_ms, p_tokens[b], coalesce(verdict, 1), actual, conflict
                    );
                END IF;
                verdict := coalesce(verdict, 1);
            END IF;
            verdicts[b] := verdict;
            actuals[b] := actual;
            times[b] := at_ms;
            conflicts[b] := conflict;
            check_place := check_place + p_checks[b];
            write_place := write_place + p_writes[b];
        END LOOP;

        swept[s] := 0;
        IF (p_batches[s] = 0 OR space.revision > was.revision)
            AND NOT is_lost AND NOT is_leap AND space.next_expiry_ms <= now_ms
        THEN
            SELECT x.swept, x.size_bytes, x.next_expiry_ms, x.parts, x.part_sizes
            INTO actual, size, space.next_expiry_ms, space.parts, space.part_sizes
            FROM {schema}.sweep_1(
                space.id, space.revision + 1, now_ms, p_sweeps[s], p_sweep_bytes, p_sweep_nonces[s],
                space.parts, space.part_sizes
            ) x;
            IF actual > 0 THEN
                swept[s] := actual;
                space.revision := space.revision + 1;
                space.nonce := p_sweep_nonces[s];
                space.log_bytes := space.log_bytes + size;
            END IF;
        END IF;
        size := space.revision - space.floor;
        IF {schema}.is_long_1(size, space.log_bytes, p_log_revisions, p_log_bytes) THEN
            SELECT coalesce(x.floor, space.floor), space.log_bytes - coalesce(x.cut_bytes, 0),
                coalesce(x.floor_nonce, space.floor_nonce)
            INTO space.floor, space.log_bytes, space.floor_nonce
            FROM {schema}.trim_1(space.id, space.revision, space.log_bytes, p_log_revisions, p_log_bytes) x;
        END IF;
        IF space <> was THEN
            UPDATE {schema}.space x SET
                revision = space.revision, floor = space.floor, clock_ms = now_ms, nonce = space.nonce,
                log_bytes = space.log_bytes, next_expiry_ms = space.next_expiry_ms,
                kept_until_ms = space.kept_until_ms, floor_nonce = space.floor_nonce,
                parts = space.parts, part_sizes = space.part_sizes,
                leap = {schema}.leap_1(x.leap, was.revision + 1, was.clock_ms, now_ms)
            WHERE x.id = space.id;
        END IF;
        revisions[s] := CASE WHEN is_lost THEN -1 ELSE space.revision END;
        nonces[s] := space.nonce;
    END LOOP;
END $$;

-- name: put_1
-- The fast path of `apply_1` for a batch of one put with at most one check, at half the cost. If the space is
-- new, must be swept or trimmed, has stored retries, leaps in time, or lost the mark, it does nothing and
-- returns verdict 0; the caller then uses `apply_1`. Verdict 6 is a conflict of the batch's `at`. The answer is
-- packed: eight bytes each for verdict, actual, time and the space's revision, then its nonce.
CREATE FUNCTION {schema}.put_1(
    p_space bytea, p_mark bigint, p_mark_nonce bytea, p_token bytea, p_nonce bytea, p_at bigint,
    p_check_key bytea, p_check_version bigint, p_check_created bigint,
    p_key bytea, p_value bytea, p_ttl bigint, p_stamp bigint,
    p_log_revisions bigint, p_log_bytes bigint, p_client_ms bigint
) RETURNS bytea LANGUAGE plpgsql
{settings} AS $$
DECLARE
    space {schema}.space;
    now_ms bigint;
    at_ms bigint;
    actual bigint;
    found_version bigint;
    found_created bigint;
    this_key bytea;
    old bytea;
    old_bytes bigint;
    new bytea := p_value;
    size bigint := 64;
    section int := get_byte(p_key, 0);
BEGIN
    SELECT * INTO space FROM {schema}.space x WHERE x.name = p_space FOR NO KEY UPDATE;
    now_ms := {schema}.now_1(space.clock_ms);
    IF space.id IS NULL OR space.next_expiry_ms <= now_ms OR space.kept_until_ms > now_ms
        OR {schema}.leaps_1(space.clock_ms, now_ms, p_client_ms)
        OR {schema}.is_long_1(space.revision + 1 - space.floor, space.log_bytes, p_log_revisions, p_log_bytes)
        OR (p_mark > 0 AND {schema}.lost_1(space, p_mark, p_mark_nonce))
    THEN
        RETURN int8send(0) || int8send(0) || int8send(0) || int8send(0) || int8send(0);
    END IF;
    -- No entry of the space has expired at this time.
    SELECT l.revision, l.now_ms INTO actual, at_ms FROM {schema}.log l
    WHERE l.token IS NOT NULL AND int8send(l.space_id) || l.token = int8send(space.id) || p_token;
    IF FOUND THEN
        RETURN int8send(1) || int8send(actual) || int8send(at_ms) || int8send(space.revision) || space.nonce;
    END IF;
    IF p_at <> space.revision THEN
        RETURN int8send(6) || int8send(space.revision) || int8send(now_ms) || int8send(space.revision)
            || space.nonce;
    END IF;
    IF p_check_key IS NOT NULL THEN
        SELECT e.version, e.created INTO found_version, found_created FROM {schema}.entry e
        WHERE e.space_id = space.id AND e.key = p_check_key;
        actual := coalesce(CASE WHEN p_check_version IS NULL THEN found_created ELSE found_version END, 0);
        IF actual <> coalesce(p_check_version, p_check_created) THEN
            RETURN int8send(2) || int8send(actual) || int8send(now_ms) || int8send(space.revision)
                || space.nonce;
        END IF;
    END IF;

    space.revision := space.revision + 1;
    this_key := {schema}.stamped_1(p_key, space.revision, p_stamp);
    INSERT INTO {schema}.entry AS e (space_id, version, created, expires_at_ms, key, value)
    VALUES (space.id, space.revision, space.revision, now_ms + p_ttl, this_key, new)
    ON CONFLICT (space_id, key) DO UPDATE SET
        version = excluded.version, expires_at_ms = excluded.expires_at_ms, value = excluded.value
    RETURNING CASE WHEN section = 2 THEN (
        SELECT o.value FROM {schema}.entry o WHERE o.space_id = space.id AND o.key = this_key
    ) END, CASE WHEN section < 2 THEN (
        SELECT length(o.value) FROM {schema}.entry o WHERE o.space_id = space.id AND o.key = this_key
    ) END INTO old, old_bytes;
    old_bytes := coalesce(old_bytes, length(old));
    SELECT x.parts, x.part_sizes INTO space.parts, space.part_sizes FROM {schema}.count_1(
        space.parts, space.part_sizes, this_key, (old_bytes IS NULL)::int,
        length(new) - coalesce(old_bytes, -length(this_key))
    ) x;
    IF section = 1 THEN
        new := NULL;
    END IF;
    IF section > 0 THEN
        size := size + 64 + length(this_key) + coalesce(length(old), 0) + coalesce(length(new), 0);
    END IF;
    INSERT INTO {schema}.log (space_id, revision, now_ms, size_bytes, nonce, token, keys, deleted, olds, news)
    SELECT space.id, space.revision, now_ms, size, p_nonce, p_token,
        CASE WHEN section > 0 THEN ARRAY[this_key] ELSE '{}' END,
        CASE WHEN section > 0 THEN ARRAY[false] ELSE '{}' END,
        CASE WHEN section > 0 THEN ARRAY[old] ELSE '{}' END,
        CASE WHEN section > 0 THEN ARRAY[new] ELSE '{}' END;
    UPDATE {schema}.space x SET
        revision = space.revision, clock_ms = now_ms, log_bytes = space.log_bytes + size, nonce = p_nonce,
        parts = space.parts, part_sizes = space.part_sizes,
        next_expiry_ms = least(space.next_expiry_ms, now_ms + p_ttl),
        leap = {schema}.leap_1(x.leap, space.revision, space.clock_ms, now_ms)
    WHERE x.id = space.id;
    RETURN int8send(1) || int8send(space.revision) || int8send(now_ms) || int8send(space.revision) || p_nonce;
END $$;

-- name: drop_2
-- Empties a space as its next revision, if that of the space is `p_at` or `p_at` is 0. Returns the space's revision and nonce. Revision -1 is a lost mark;
-- -2 is a leap in time, to `leapt_ms`, that the client does not confirm.
CREATE FUNCTION {schema}.drop_2(
    p_name bytea, p_mark bigint, p_mark_nonce bytea, p_nonce bytea, p_client_ms bigint, p_at bigint,
    OUT revision bigint, OUT nonce bytea, OUT leapt_ms bigint
) LANGUAGE plpgsql
{settings} AS $$
DECLARE
    space {schema}.space;
BEGIN
    SELECT * INTO space FROM {schema}.space x WHERE x.name = p_name FOR NO KEY UPDATE;
    revision := coalesce(space.revision, 0);
    nonce := coalesce(space.nonce, '');
    IF p_mark > 0 AND (space.id IS NULL OR {schema}.lost_1(space, p_mark, p_mark_nonce)) THEN
        revision := -1;
    ELSIF p_at NOT IN (0, revision) THEN
        NULL;
    ELSIF space.revision > space.floor
        AND {schema}.leaps_1(space.clock_ms, {schema}.now_1(space.clock_ms), p_client_ms)
    THEN
        revision := -2;
        leapt_ms := {schema}.now_1(space.clock_ms);
    ELSIF space.revision > space.floor THEN
        DELETE FROM {schema}.entry e WHERE e.space_id = space.id;
        DELETE FROM {schema}.log l WHERE l.space_id = space.id;
        revision := space.revision + 1;
        nonce := p_nonce;
        UPDATE {schema}.space x SET
            revision = drop_2.revision, floor = drop_2.revision, clock_ms = {schema}.now_1(space.clock_ms),
            log_bytes = 0, next_expiry_ms = DEFAULT, parts = DEFAULT, part_sizes = DEFAULT, nonce = p_nonce, floor_nonce = p_nonce,
            leap = {schema}.leap_1(x.leap, drop_2.revision, x.clock_ms, {schema}.now_1(x.clock_ms))
        WHERE x.id = space.id;
    END IF;
END $$;

-- name: trim_space_2
-- Removes the log of a space but the last `p_keep` revisions. Returns the space's revision and nonce; revision -1 is a
-- lost mark.
CREATE FUNCTION {schema}.trim_space_2(
    p_name bytea, p_mark bigint, p_mark_nonce bytea, p_keep bigint, OUT revision bigint, OUT nonce bytea
) LANGUAGE plpgsql
{settings} AS $$
DECLARE
    space {schema}.space;
BEGIN
    SELECT * INTO space FROM {schema}.space x WHERE x.name = p_name FOR NO KEY UPDATE;
    revision := coalesce(space.revision, 0);
    nonce := coalesce(space.nonce, '');
    IF p_mark > 0 AND (space.id IS NULL OR {schema}.lost_1(space, p_mark, p_mark_nonce)) THEN
        revision := -1;
    ELSIF space.revision - space.floor > p_keep THEN
        UPDATE {schema}.space x SET
            floor = space.revision - p_keep,
            floor_nonce = (
                SELECT l.nonce FROM {schema}.log l
                WHERE l.space_id = space.id AND l.revision = space.revision - p_keep
            ),
            log_bytes = (
                SELECT sum(l.size_bytes) FROM {schema}.log l
                WHERE l.space_id = space.id AND l.revision > space.revision - p_keep
            )
        WHERE x.id = space.id;
        DELETE FROM {schema}.log l WHERE l.space_id = space.id AND l.revision <= space.revision - p_keep;
    END IF;
END $$;
