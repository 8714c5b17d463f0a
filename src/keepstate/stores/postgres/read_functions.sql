-- Server functions that read a space. Each is one statement, so its result belongs to one moment.

-- name: get_1
-- One entry and the state of its space, packed, because a record costs both sides more. Eight bytes each for
-- revision, floor, nonce, the log's nonce for the caller's mark, now, the space's last time, version, created and
-- expiry, then the value. Absent fields are zeros.
CREATE FUNCTION {schema}.get_1(p_name bytea, p_key bytea, p_mark bigint) RETURNS bytea LANGUAGE plpgsql STABLE
{settings} AS $$
DECLARE
    answer bytea;
    none bytea := int8send(0);
BEGIN
    SELECT int8send(s.revision) || int8send(s.floor) || CASE WHEN s.nonce = '' THEN none ELSE s.nonce END
        || CASE WHEN p_mark < s.revision AND p_mark >= s.floor AND p_mark > 0
            THEN coalesce({schema}.marked_1(s.id, p_mark), none) ELSE none END
        || int8send({schema}.now_1(s.clock_ms)) || int8send(s.clock_ms)
        || int8send(coalesce(e.version, 0)) || int8send(coalesce(e.created, 0))
        || int8send(coalesce(e.expires_at_ms, 0)) || coalesce(e.value, '')
    INTO answer
    FROM {schema}.space s LEFT JOIN {schema}.entry e ON e.space_id = s.id AND e.key = p_key
    WHERE s.name = p_name;
    IF answer IS NULL THEN
        answer := none || none || none || none || int8send({schema}.now_1(0)) || none || none || none || none;
    END IF;
    RETURN answer;
END $$;

-- name: marked_1
-- The nonce of a revision between the floor and the newest, or null.
CREATE FUNCTION {schema}.marked_1(p_space_id bigint, p_mark bigint) RETURNS bytea
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce(
        (SELECT l.nonce FROM {schema}.log l WHERE l.space_id = p_space_id AND l.revision = p_mark),
        (SELECT s.floor_nonce FROM {schema}.space s WHERE s.id = p_space_id AND s.floor = p_mark)
    );
END $$;

-- name: read_2
-- The entries of many keys that are alive at `p_at_ms`, or now, by index; none if their values exceed `p_bytes`.
-- Each key has its own subquery. Otherwise a plan that was made while spaces were small scans all entries of the
-- space, even after there are many.
CREATE FUNCTION {schema}.read_2(
    p_name bytea, p_keys bytea[], p_mark bigint, p_bytes bigint, p_at_ms bigint,
    OUT revision bigint, OUT floor bigint, OUT nonce bytea, OUT marked bytea, OUT now_ms bigint,
    OUT size_bytes bigint,
    OUT places bigint[], OUT vals bytea[], OUT versions bigint[], OUT createds bigint[], OUT expiries bigint[],
    OUT clock_ms bigint
) LANGUAGE plpgsql STABLE
{settings} AS $$
DECLARE
    wanted_id bigint;
    judged_ms bigint;
BEGIN
    SELECT s.id, s.revision, s.floor, s.nonce, {schema}.now_1(s.clock_ms), s.clock_ms
    INTO wanted_id, revision, floor, nonce, now_ms, clock_ms
    FROM {schema}.space s WHERE s.name = p_name;
    now_ms := coalesce(now_ms, {schema}.now_1(0));
    clock_ms := coalesce(clock_ms, 0);
    judged_ms := coalesce(p_at_ms, now_ms);
    IF p_mark < revision AND p_mark >= floor AND p_mark > 0 THEN
        marked := {schema}.marked_1(wanted_id, p_mark);
    END IF;
    SELECT coalesce(sum(length(e.value)), 0) INTO size_bytes
    FROM unnest(p_keys) k(key) CROSS JOIN LATERAL (
        SELECT f.value FROM {schema}.entry f
        WHERE f.space_id = wanted_id AND f.key = k.key AND (f.expires_at_ms IS NULL OR f.expires_at_ms > judged_ms)
        OFFSET 0
    ) e;
    IF size_bytes > p_bytes THEN
        RETURN;
    END IF;
    SELECT array_agg(k.place), array_agg(e.value), array_agg(e.version), array_agg(e.created),
        array_agg(e.expires_at_ms)
    INTO places, vals, versions, createds, expiries
    FROM unnest(p_keys) WITH ORDINALITY k(key, place) CROSS JOIN LATERAL (
        SELECT f.value, f.version, f.created, f.expires_at_ms FROM {schema}.entry f
        WHERE f.space_id = wanted_id AND f.key = k.key AND (f.expires_at_ms IS NULL OR f.expires_at_ms > judged_ms)
        OFFSET 0
    ) e;
END $$;

-- name: scan_1
-- A page of the entries that are alive at `p_at_ms`, or now, with p_low <= key < p_high; and the last key that was
-- examined, if there may be more.
CREATE FUNCTION {schema}.scan_1(
    p_name bytea, p_low bytea, p_high bytea, p_is_reverse bigint, p_limit bigint, p_rows bigint,
    p_bytes bigint, p_mark bigint, p_at_ms bigint,
    OUT revision bigint, OUT floor bigint, OUT nonce bytea, OUT marked bytea, OUT following bytea,
    OUT keys bytea[], OUT vals bytea[], OUT versions bigint[], OUT createds bigint[], OUT expiries bigint[],
    OUT now_ms bigint, OUT clock_ms bigint
) LANGUAGE plpgsql STABLE
{settings} AS $$
DECLARE
    wanted_id bigint;
    judged_ms bigint;
    rows refcursor;
    entry record;
    found_count bigint := 0;
    looked bigint := 0;
    size bigint := 0;
    last_key bytea;
BEGIN
    SELECT s.id, s.revision, s.floor, s.nonce, {schema}.now_1(s.clock_ms), s.clock_ms
    INTO wanted_id, revision, floor, nonce, now_ms, clock_ms
    FROM {schema}.space s WHERE s.name = p_name;
    now_ms := coalesce(now_ms, {schema}.now_1(0));
    clock_ms := coalesce(clock_ms, 0);
    judged_ms := coalesce(p_at_ms, now_ms);
    IF p_mark < revision AND p_mark >= floor AND p_mark > 0 THEN
        marked := {schema}.marked_1(wanted_id, p_mark);
    END IF;
    keys := '{}';
    vals := '{}';
    versions := '{}';
    createds := '{}';
    expiries := '{}';
    IF p_is_reverse > 0 THEN
        OPEN rows FOR SELECT e.* FROM {schema}.entry e
            WHERE e.space_id = wanted_id AND e.key >= p_low AND e.key < p_high
            ORDER BY e.key DESC LIMIT p_rows + 1;
    ELSE
        OPEN rows FOR SELECT e.* FROM {schema}.entry e
            WHERE e.space_id = wanted_id AND e.key >= p_low AND e.key < p_high
            ORDER BY e.key LIMIT p_rows + 1;
    END IF;
    LOOP
        FETCH rows INTO entry;
        EXIT WHEN NOT FOUND;
        IF found_count = p_limit OR looked = p_rows THEN
            following := last_key;
            EXIT;
        END IF;
        IF entry.expires_at_ms IS NULL OR entry.expires_at_ms > judged_ms THEN
            size := size + length(entry.value);
            IF size > p_bytes AND found_count > 0 THEN
                following := last_key;
                EXIT;
            END IF;
            found_count := found_count + 1;
            keys := array_append(keys, entry.key);
            vals := array_append(vals, entry.value);
            versions := array_append(versions, entry.version);
            createds := array_append(createds, entry.created);
            expiries := array_append(expiries, entry.expires_at_ms);
        END IF;
        looked := looked + 1;
        last_key := entry.key;
    END LOOP;
    CLOSE rows;
END $$;

-- name: sizes_1
-- The sizes of a space's parts, without what has expired and is not swept yet.
CREATE FUNCTION {schema}.sizes_1(
    p_name bytea, p_mark bigint,
    OUT revision bigint, OUT floor bigint, OUT nonce bytea, OUT marked bytea, OUT now_ms bigint,
    OUT clock_ms bigint, OUT parts bytea[], OUT part_sizes bigint[]
) LANGUAGE plpgsql STABLE
{settings} AS $$
DECLARE
    space {schema}.space;
    expired record;
BEGIN
    SELECT * INTO space FROM {schema}.space s WHERE s.name = p_name;
    revision := space.revision;
    floor := space.floor;
    nonce := space.nonce;
    clock_ms := coalesce(space.clock_ms, 0);
    now_ms := {schema}.now_1(clock_ms);
    parts := coalesce(space.parts, '{}');
    part_sizes := coalesce(space.part_sizes, '{}');
    IF p_mark < revision AND p_mark >= floor AND p_mark > 0 THEN
        marked := {schema}.marked_1(space.id, p_mark);
    END IF;
    IF space.next_expiry_ms <= now_ms THEN
        FOR expired IN
            SELECT e.key, length(e.value) AS size FROM {schema}.entry e
            WHERE e.space_id = space.id AND e.expires_at_ms <= sizes_1.now_ms
            ORDER BY e.expires_at_ms, e.key
        LOOP
            SELECT * INTO parts, part_sizes FROM {schema}.count_1(
                parts, part_sizes, expired.key, -1, -length(expired.key) - expired.size
            );
        END LOOP;
    END IF;
END $$;

-- name: changes_1
-- Changes after a revision, as parallel arrays with one element for each change. Ends with the revision that
-- reaches a limit. `nonces`: those of `p_after`, of `upto`, and of the revision of each change.
CREATE FUNCTION {schema}.changes_1(
    p_name bytea, p_after bigint, p_limit bigint, p_bytes bigint, p_mark bigint,
    OUT revision bigint, OUT floor bigint, OUT nonce bytea, OUT marked bytea, OUT upto bigint,
    OUT revisions bigint[], OUT keys bytea[], OUT deleted boolean[], OUT olds bytea[], OUT news bytea[],
    OUT expired boolean[],
    OUT nonces bytea[]
) LANGUAGE plpgsql STABLE
{settings} AS $$
DECLARE
    wanted_id bigint;
    logged record;
    last_nonce bytea;
    found_count bigint := 0;
    size bigint := 0;
BEGIN
    SELECT s.id, s.revision, s.floor, s.nonce INTO wanted_id, revision, floor, nonce
    FROM {schema}.space s WHERE s.name = p_name;
    IF p_mark < revision AND p_mark >= floor AND p_mark > 0 THEN
        marked := {schema}.marked_1(wanted_id, p_mark);
    END IF;
    upto := p_after;
    revisions := '{}';
    keys := '{}';
    deleted := '{}';
    olds := '{}';
    news := '{}';
    expired := '{}';
    nonces := '{}';
    IF p_after < floor OR p_after > revision THEN
        RETURN;
    END IF;
    last_nonce := coalesce({schema}.marked_1(wanted_id, p_after), '');
    nonces := ARRAY[last_nonce, last_nonce];
    IF p_after = revision THEN
        RETURN;
    END IF;
    FOR logged IN
        SELECT l.* FROM {schema}.log l WHERE l.space_id = wanted_id AND l.revision > p_after
        ORDER BY l.space_id, l.revision
    LOOP
        FOR i IN 1 .. cardinality(logged.keys) LOOP
            revisions := array_append(revisions, logged.revision);
            keys := array_append(keys, logged.keys[i]);
            deleted := array_append(deleted, logged.deleted[i]);
            olds := array_append(olds, logged.olds[i]);
            news := array_append(news, logged.news[i]);
            expired := array_append(expired, coalesce(logged.expired[i], false));
            nonces := array_append(nonces, logged.nonce);
        END LOOP;
        upto := logged.revision;
        nonces[2] := logged.nonce;
        found_count := found_count + cardinality(logged.keys);
        size := size + logged.size_bytes;
        EXIT WHEN found_count >= p_limit OR size >= p_bytes;
    END LOOP;
END $$;

-- name: expired_1
-- Names of up to `p_limit` spaces with expired entries, and the last id that was examined, or null at the end.
-- Examines at most 1,000 spaces, each with one step in the index of expiry times.
CREATE FUNCTION {schema}.expired_1(p_after bigint, p_limit bigint, OUT names bytea[], OUT following bigint)
LANGUAGE plpgsql STABLE
{settings} AS $$
DECLARE
    soonest record;
BEGIN
    names := '{}';
    following := p_after;
    FOR looked IN 1 .. 1000 LOOP
        SELECT e.space_id, e.expires_at_ms INTO soonest FROM {schema}.entry e
        WHERE e.space_id > following AND e.expires_at_ms IS NOT NULL
        ORDER BY e.space_id, e.expires_at_ms LIMIT 1;
        IF NOT FOUND THEN
            following := NULL;
            RETURN;
        END IF;
        following := soonest.space_id;
        SELECT array_cat(names, array_agg(s.name)) INTO names FROM {schema}.space s
        WHERE s.id = following AND soonest.expires_at_ms <= {schema}.now_1(s.clock_ms);
        EXIT WHEN cardinality(names) >= p_limit;
    END LOOP;
END $$;
