-- Statements for PostgreSQL, beside common.sql. $1 is the shard unless said otherwise. Lists of numbers come as text and are
-- cast to arrays, which is cheaper for the driver; rows come as one array for each column.
--
-- take_ready skips sites that others have locked: a lease never waits for another. lock_sites waits, in the order of the sites.
-- moment_and_ready and moment_and_leases join what one call asks at its start into one round trip. WITH ... AS MATERIALIZED
-- makes the parts run in their order, with the locks before the reads.
-- wake locks the sites in their order before it changes them, so that two calls wait and do not deadlock. It leaves alone
-- those that are awake already, which are most: no lock, and no dead row.
-- finish_rows and close_site move rows from the queue to `done` in one statement: a URL is in one of them at any time.
-- write ends with the counters, whose row stays locked until the commit. It finishes rows as finish_rows does, which is for
-- calls that read the queue before their end.
-- restarted compares the server that was stored before: of two connections that notice a restart, one counts it.

-- name: moment
SELECT j.state, j.revision, COALESCE(j.clock, (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint) AS clock,
    s.skew, s.restarts, s.rest_until, s.longest, s.allowance, s.phase, s.place, c.*,
    EXISTS (SELECT 1 FROM gossamer_inbox i WHERE i.job IN (j.name, '') AND i.error IS NULL) AS inbox
FROM gossamer_shards s
JOIN gossamer_jobs j ON j.job = s.job
CROSS JOIN (
    SELECT SUM(queued)::bigint AS queued, SUM(later)::bigint AS later, SUM(leased)::bigint AS leased,
        SUM(held)::bigint AS held, SUM(done)::bigint AS done, SUM(failed)::bigint AS failed,
        SUM(skipped)::bigint AS skipped, SUM(parked)::bigint AS parked, SUM(stale)::bigint AS stale,
        SUM(kept)::bigint AS kept, SUM(revisits)::bigint AS revisits, SUM(suspects)::bigint AS suspects,
        SUM(known)::bigint AS known, SUM(sites)::bigint AS sites, SUM(news)::bigint AS news,
        SUM(handed)::bigint AS handed,
        MAX(token) AS token, MAX(latest_at) AS latest_at
    FROM gossamer_counters WHERE shard = $1
) c
WHERE s.shard = $1

-- name: brief_moment
SELECT j.state, j.revision, COALESCE(j.clock, (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint) AS clock,
    s.skew, s.restarts, s.rest_until, s.longest, s.allowance, s.phase, s.place,
    (SELECT MAX(latest_at) FROM gossamer_counters WHERE shard = $1) AS latest_at, s.lulls
FROM gossamer_shards s JOIN gossamer_jobs j ON j.job = s.job WHERE s.shard = $1

-- name: take_ready
SELECT site, name, region, ready_at, hold_at, closed, lanes FROM gossamer_sites
WHERE shard = $1 AND region = $2 AND ready_at <= $3 ORDER BY ready_at LIMIT $4 FOR UPDATE SKIP LOCKED

-- name: moment_and_ready
-- Sites as they are elsewhere, and the moment as one row with all its numbers in a list.
WITH m AS MATERIALIZED (
    SELECT j.state, j.revision, COALESCE(j.clock, (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint) AS clock,
        s.skew, s.restarts, s.rest_until, s.longest, s.allowance, s.phase, s.place, c.*,
        EXISTS (SELECT 1 FROM gossamer_inbox i WHERE i.job IN (j.name, '') AND i.error IS NULL) AS inbox
    FROM gossamer_shards s
    JOIN gossamer_jobs j ON j.job = s.job
    CROSS JOIN (
        SELECT ARRAY[SUM(queued), SUM(later), SUM(leased), SUM(held), SUM(done), SUM(failed), SUM(skipped), SUM(parked),
            SUM(stale), SUM(kept), SUM(revisits), SUM(suspects), SUM(known), SUM(sites), SUM(news), SUM(handed)]::bigint[]
            AS counts, MAX(token) AS token, MAX(latest_at) AS latest_at
        FROM gossamer_counters WHERE shard = $1
    ) c
    WHERE s.shard = $1
), ready AS MATERIALIZED (
    SELECT t.* FROM unnest($2::text[]) AS g (region) CROSS JOIN LATERAL (
        SELECT site, name, region, ready_at, hold_at, closed, lanes FROM gossamer_sites
        WHERE shard = $1 AND region = g.region AND ready_at <= (SELECT GREATEST(clock + skew, latest_at) FROM m)
        ORDER BY ready_at LIMIT $3 FOR UPDATE SKIP LOCKED) t
)
SELECT NULL::bigint, state, place, NULL::bigint, NULL::bigint, NULL::text, NULL::bytea,
    ARRAY[revision, clock, skew, restarts, rest_until, longest, allowance, phase]::bigint[] || counts
    || ARRAY[token, latest_at, inbox::int] FROM m
UNION ALL
SELECT site, name, region, ready_at, hold_at, closed, lanes, NULL::bigint[] FROM ready

-- name: moment_and_leases
-- The parts are run in their order, so the sites are locked before the leases; what was waited for is read as it is then.
WITH s AS MATERIALIZED (
    SELECT site, name, region, ready_at, hold_at, closed, lanes FROM gossamer_sites
    WHERE shard = $1 AND site = ANY($2::text::bigint[]) ORDER BY site FOR UPDATE
), l AS MATERIALIZED (
    SELECT token, site, lane, until_at, suspect, worker, batch FROM gossamer_leases
    WHERE shard = $1 AND token = ANY($3::text::bigint[]) FOR UPDATE
)
SELECT NULL::bigint, j.state, s.place, NULL::bigint, NULL::bigint, NULL::text, NULL::bytea,
    ARRAY[j.revision, COALESCE(j.clock, (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint), s.skew, s.restarts,
        s.rest_until, s.longest, s.allowance, s.phase,
        (SELECT MAX(latest_at) FROM gossamer_counters WHERE shard = $1), s.lulls]::bigint[]
FROM gossamer_shards s JOIN gossamer_jobs j ON j.job = s.job WHERE s.shard = $1
UNION ALL
SELECT site, name, region, ready_at, hold_at, closed, lanes, NULL::bigint[] FROM s
UNION ALL
SELECT token, worker, batch, site, NULL::bigint, NULL::text, NULL::bytea, ARRAY[lane, until_at, suspect::int]::bigint[] FROM l

-- name: next_ready
SELECT site, ready_at FROM gossamer_sites WHERE shard = $1 AND region = $2 AND ready_at IS NOT NULL ORDER BY ready_at LIMIT $3

-- name: ready_sites
SELECT region, COUNT(*) FILTER (WHERE ready_at <= $2), COUNT(*) FILTER (WHERE ready_at > $2)
FROM gossamer_sites WHERE shard = $1 AND ready_at IS NOT NULL GROUP BY region

-- name: held_sites
SELECT COUNT(*) FROM gossamer_sites WHERE shard = $1 AND hold_at > $2

-- name: lock_sites
SELECT site, name, region, ready_at, hold_at, closed, lanes FROM gossamer_sites
WHERE shard = $1 AND site = ANY($2::text::bigint[]) ORDER BY site FOR UPDATE

-- name: try_sites
SELECT site, name, region, ready_at, hold_at, closed, lanes FROM gossamer_sites
WHERE shard = $1 AND site = ANY($2::text::bigint[]) ORDER BY site FOR UPDATE SKIP LOCKED

-- name: wake
UPDATE gossamer_sites SET ready_at = wake_at WHERE shard = $1 AND site IN (
    SELECT site FROM gossamer_sites
    WHERE shard = $1 AND site = ANY($2::text::bigint[]) AND (ready_at IS NULL OR ready_at > wake_at) AND closed = ''
    ORDER BY site FOR UPDATE)

-- name: insert_sites
INSERT INTO gossamer_sites (shard, site, name, region, ready_at, wake_at, lanes)
SELECT $1, * FROM unnest($2::text::bigint[], $3::text[], $4::text[], $5::text::bigint[], $6::text::bigint[], $7::bytea[])
ON CONFLICT DO NOTHING RETURNING site

-- name: notes
SELECT site, robots, memo FROM gossamer_notes WHERE shard = $1 AND site = ANY($2::text::bigint[])

-- name: save_note
INSERT INTO gossamer_notes (shard, site, robots, memo) VALUES ($1, $2, $3, $4)
ON CONFLICT (shard, site) DO UPDATE SET robots = EXCLUDED.robots, memo = EXCLUDED.memo

-- name: leases_by_token
SELECT token, site, lane, until_at, suspect, worker, batch FROM gossamer_leases
WHERE shard = $1 AND token = ANY($2::text::bigint[])

-- name: leases_of_sites
SELECT token, site, lane, until_at, suspect, worker, batch FROM gossamer_leases
WHERE shard = $1 AND site = ANY($2::text::bigint[])

-- name: leases_of_worker
SELECT token, site, lane, until_at, suspect, worker, batch FROM gossamer_leases WHERE shard = $1 AND worker = $2

-- name: put_seen
-- The keys that were there. Not as a join: for a table that was empty when it was planned, that would compare each key with
-- all others.
WITH asked AS MATERIALIZED (
    SELECT k, (SELECT 1 FROM gossamer_seen s WHERE s.shard = $1 AND s.id = k) AS old FROM unnest($2::text::bigint[]) AS k
), new AS (
    INSERT INTO gossamer_seen (shard, id) SELECT $1, k FROM asked WHERE old IS NULL
)
SELECT k, NULL::text, NULL::boolean FROM asked WHERE old IS NOT NULL
UNION ALL
SELECT site, closed, ready_at IS NULL OR ready_at > wake_at FROM gossamer_sites
WHERE shard = $1 AND site = ANY($3::text::bigint[])

-- name: put_wary
-- The same, where others add the same keys now.
WITH new AS (
    INSERT INTO gossamer_seen (shard, id) SELECT $1, k FROM unnest($2::text::bigint[]) AS k
    ON CONFLICT DO NOTHING RETURNING id
)
SELECT k, NULL::text, NULL::boolean FROM unnest($2::text::bigint[]) AS k WHERE k NOT IN (SELECT id FROM new)
UNION ALL
SELECT site, closed, ready_at IS NULL OR ready_at > wake_at FROM gossamer_sites
WHERE shard = $1 AND site = ANY($3::text::bigint[])

-- name: heads
SELECT q.site, q.place, q.standing, q.age, q.id, q.url, q.depth, q.priority, q.tries, q.lapses, q.again, q.extra
FROM unnest($2::text::bigint[], $3::text::int[]) AS w (site, most)
CROSS JOIN LATERAL (
    (SELECT * FROM gossamer_queue t WHERE t.shard = $1 AND t.site = w.site AND t.place = 1 AND t.standing <= $4
    ORDER BY t.standing, t.age, t.id LIMIT w.most)
    UNION ALL
    (SELECT * FROM gossamer_queue t WHERE t.shard = $1 AND t.site = w.site AND t.place = 2
    ORDER BY t.standing, t.age, t.id LIMIT w.most)
) q

-- name: heads_and_notes
SELECT q.site, q.place, q.standing, q.age, q.id, q.url, q.depth, q.priority, q.tries, q.lapses, q.again, q.extra, NULL::bytea
FROM unnest($2::text::bigint[], $3::text::int[]) AS w (site, most)
CROSS JOIN LATERAL (
    (SELECT * FROM gossamer_queue t WHERE t.shard = $1 AND t.site = w.site AND t.place = 1 AND t.standing <= $4
    ORDER BY t.standing, t.age, t.id LIMIT w.most)
    UNION ALL
    (SELECT * FROM gossamer_queue t WHERE t.shard = $1 AND t.site = w.site AND t.place = 2
    ORDER BY t.standing, t.age, t.id LIMIT w.most)
) q
UNION ALL
SELECT site, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, robots, memo FROM gossamer_notes
WHERE shard = $1 AND site = ANY($5::text::bigint[])

-- name: suspects
SELECT q.site, q.place, q.standing, q.age, q.id, q.url, q.depth, q.priority, q.tries, q.lapses, q.again, q.extra
FROM unnest($2::text::bigint[], $3::text::int[]) AS w (site, most)
CROSS JOIN LATERAL (
    SELECT * FROM gossamer_queue t WHERE t.shard = $1 AND t.site = w.site AND t.place = 0
    ORDER BY t.standing, t.age, t.id LIMIT w.most
) q

-- name: first_due
SELECT w.site, (SELECT MIN(standing) FROM gossamer_queue q WHERE q.shard = $1 AND q.site = w.site AND q.place = 1 AND q.standing > $3)
FROM unnest($2::text::bigint[]) AS w (site)

-- name: peek_sites
SELECT site, name, region, ready_at, hold_at, closed, lanes FROM gossamer_sites WHERE shard = $1 AND site = ANY($2::text::bigint[])

-- name: rows_at
SELECT q.site, q.place, q.standing, q.age, q.id, q.url, q.depth, q.priority, q.tries, q.lapses, q.again, q.extra
FROM unnest($2::text::bigint[], $3::text::smallint[], $4::text::bigint[], $5::text::bigint[], $6::text::bigint[]) AS w (site, place, standing, age, id)
JOIN gossamer_queue q ON q.shard = $1 AND q.site = w.site AND q.place = w.place AND q.standing = w.standing
    AND q.age = w.age AND q.id = w.id

-- name: waiting_rows
SELECT site, place, standing, age, id, url, depth, priority, tries, lapses, again, extra FROM gossamer_queue
WHERE shard = $1 AND site = $2 AND place = 1 AND standing > $3 AND id = ANY($4::text::bigint[]) AND again IN (1, 2, 3)

-- name: drop_rows
DELETE FROM gossamer_queue q
USING unnest($2::text::bigint[], $3::text::smallint[], $4::text::bigint[], $5::text::bigint[], $6::text::bigint[]) AS w (site, place, standing, age, id)
WHERE q.shard = $1 AND q.site = w.site AND q.place = w.place AND q.standing = w.standing AND q.age = w.age AND q.id = w.id

-- name: mark_taken
UPDATE gossamer_queue q SET again = 0
FROM unnest($2::text::bigint[], $3::text::smallint[], $4::text::bigint[], $5::text::bigint[], $6::text::bigint[]) AS w (site, place, standing, age, id)
WHERE q.shard = $1 AND q.site = w.site AND q.place = w.place AND q.standing = w.standing AND q.age = w.age AND q.id = w.id

-- name: finish_rows
WITH gone AS (
    DELETE FROM gossamer_queue q
    USING unnest($2::text::bigint[], $3::text::smallint[], $4::text::bigint[], $5::text::bigint[], $6::text::bigint[], $7::text::smallint[], $8::text::smallint[])
        AS w (site, place, standing, age, id, status, code)
    WHERE q.shard = $1 AND q.site = w.site AND q.place = w.place AND q.standing = w.standing AND q.age = w.age AND q.id = w.id
    RETURNING q.id, q.site, q.depth, q.priority, q.tries, w.status, w.code, q.url
)
INSERT INTO gossamer_done (shard, id, site, finished_at, depth, priority, tries, status, code, url)
SELECT $1, id, site, $9, depth, priority, tries, status, code, url FROM gone
ON CONFLICT (shard, id) DO UPDATE SET finished_at = EXCLUDED.finished_at, tries = EXCLUDED.tries,
    status = EXCLUDED.status, code = EXCLUDED.code

-- name: refuse_rows
INSERT INTO gossamer_done (shard, id, site, finished_at, depth, priority, tries, status, code, url)
SELECT $1, id, site, $2, depth, priority, 0, status, 0, url
FROM unnest($3::text::bigint[], $4::text::bigint[], $5::text::int[], $6::text::bigint[], $7::text::smallint[], $8::text[])
    AS n (id, site, depth, priority, status, url)
ON CONFLICT DO NOTHING

-- name: close_site
WITH gone AS (
    DELETE FROM gossamer_queue WHERE shard = $1 AND site = $2 AND id <> ALL($3::text::bigint[])
    RETURNING id, site, depth, priority, tries, place, again, url
), kept AS (
    INSERT INTO gossamer_done (shard, id, site, finished_at, depth, priority, tries, status, code, url)
    SELECT $1, id, site, $5, depth, priority, tries, CASE WHEN again IN (1, 2, 3) THEN again ELSE $4 END, 0, url FROM gone
    ON CONFLICT DO NOTHING
)
SELECT place, again, COUNT(*) FROM gone GROUP BY place, again

-- name: write
WITH gone AS (
    DELETE FROM gossamer_leases WHERE shard = $1 AND token = ANY($21::text::bigint[])
), given AS (
    INSERT INTO gossamer_leases (shard, token, site, lane, until_at, suspect, worker, batch)
    SELECT $1, * FROM unnest($22::text::bigint[], $23::text::bigint[], $24::text::int[], $25::text::bigint[],
        $26::text::boolean[], $27::text[], $28::text[])
), changed AS (
    UPDATE gossamer_leases l SET until_at = n.until_at, batch = n.batch
    FROM unnest($29::text::bigint[], $30::text::bigint[], $31::text[]) AS n (token, until_at, batch)
    WHERE l.shard = $1 AND l.token = n.token
), moved AS (
    UPDATE gossamer_sites s SET ready_at = n.ready_at, wake_at = n.wake_at, hold_at = n.hold_at, region = n.region,
        closed = n.closed, lanes = n.lanes
    FROM unnest($32::text::bigint[], $33::text::bigint[], $34::text::bigint[], $35::text::bigint[], $36::text[],
        $37::text[], $38::bytea[]) AS n (site, ready_at, wake_at, hold_at, region, closed, lanes)
    WHERE s.shard = $1 AND s.site = n.site
), finished AS (
    DELETE FROM gossamer_queue q
    USING unnest($39::text::bigint[], $40::text::smallint[], $41::text::bigint[], $42::text::bigint[],
        $43::text::bigint[], $44::text::smallint[], $45::text::smallint[])
        AS w (site, place, standing, age, id, status, code)
    WHERE q.shard = $1 AND q.site = w.site AND q.place = w.place AND q.standing = w.standing AND q.age = w.age AND q.id = w.id
    RETURNING q.id, q.site, q.depth, q.priority, q.tries, w.status, w.code, q.url
), done AS (
    INSERT INTO gossamer_done (shard, id, site, finished_at, depth, priority, tries, status, code, url)
    SELECT $1, id, site, $46, depth, priority, tries, status, code, url FROM finished
    ON CONFLICT (shard, id) DO UPDATE SET finished_at = EXCLUDED.finished_at, tries = EXCLUDED.tries,
        status = EXCLUDED.status, code = EXCLUDED.code
)
UPDATE gossamer_counters SET queued = queued + $3, later = later + $4, leased = leased + $5, held = held + $6,
    done = done + $7, failed = failed + $8, skipped = skipped + $9, parked = parked + $10, stale = stale + $11,
    kept = kept + $12, revisits = revisits + $13, suspects = suspects + $14, known = known + $15, sites = sites + $16,
    news = news + $17,
    handed = handed + $18, token = GREATEST(token, $19), latest_at = GREATEST(latest_at, $20),
    frozen = frozen * 2
WHERE shard = $1 AND stripe = $2

-- name: news
SELECT SUM(news)::bigint FROM gossamer_counters WHERE shard = $1

-- name: wait
UPDATE gossamer_shards SET waiting_until = GREATEST(waiting_until, (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint + $2)
WHERE shard = $1

-- name: beat
INSERT INTO gossamer_workers (shard, digest, beat_at, pulse)
VALUES ($1, $2, (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint, $3)
ON CONFLICT (shard, digest) DO UPDATE SET beat_at = EXCLUDED.beat_at, pulse = EXCLUDED.pulse

-- name: workers
SELECT pulse, ((EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint - beat_at)::bigint AS silent FROM gossamer_workers
WHERE shard = $1 AND beat_at > EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 - 600000000

-- name: forget_workers
DELETE FROM gossamer_workers WHERE shard = $1 AND beat_at < EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 - 86400000000

-- name: take_inbox
SELECT i.entry, i.url, i.priority, (EXTRACT(EPOCH FROM i.available_time - now()) * 1000000)::bigint AS wait
FROM gossamer_inbox i
JOIN gossamer_shards s ON s.shard = $1
JOIN gossamer_jobs j ON j.job = s.job AND i.job IN (j.name, '')
WHERE i.error IS NULL ORDER BY i.entry LIMIT $2 FOR UPDATE OF i SKIP LOCKED

-- name: empty_inbox
DELETE FROM gossamer_inbox WHERE entry = ANY($1::text::bigint[])

-- name: refuse_inbox
UPDATE gossamer_inbox SET error = $2 WHERE entry = $1

-- name: compact
DELETE FROM gossamer_done WHERE shard = $1 AND id IN (
    SELECT id FROM gossamer_done WHERE shard = $1 AND finished_at < $2 AND id > $3 ORDER BY id LIMIT $4)
RETURNING id

-- name: drop_done
DELETE FROM gossamer_done WHERE shard = $1 AND id = ANY($2::text::bigint[])

-- name: drop_seen
DELETE FROM gossamer_seen WHERE shard = $1 AND id = ANY($2::text::bigint[])

-- name: make_job
INSERT INTO gossamer_jobs (digest, name, format, revision, settings, secret, state)
SELECT $2, $3, $4, 0, $5, $6, 'running' WHERE $1 >= 0 ON CONFLICT DO NOTHING

-- name: make_shard
INSERT INTO gossamer_shards (job, number) SELECT job, $3 FROM gossamer_jobs WHERE $1 >= 0 AND digest = $2
ON CONFLICT DO NOTHING

-- name: make_stripes
INSERT INTO gossamer_counters (shard, stripe) SELECT $1, unnest($2::text::int[]) ON CONFLICT DO NOTHING

-- name: restarted
UPDATE gossamer_shards SET server = $2, restarts = restarts + CASE server WHEN '' THEN 0 ELSE 1 END,
    rest_until = CASE server WHEN '' THEN rest_until ELSE longest + GREATEST(
        (SELECT MAX(latest_at) FROM gossamer_counters c WHERE c.shard = $1),
        skew + COALESCE((SELECT j.clock FROM gossamer_jobs j WHERE j.job = gossamer_shards.job),
            (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint)) END
WHERE shard = $1 AND server = $3

-- name: is_outbox
SELECT to_regclass('gossamer_parcels') IS NOT NULL WHERE $1 >= 0

-- name: put_box
INSERT INTO gossamer_boxes (shard, box, stripe, server, run, taken, added) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (shard, box, stripe) DO UPDATE SET added = gossamer_boxes.added + $8
