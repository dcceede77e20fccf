-- What the frontier asks of MariaDB and MySQL beside common.sql; only what both take. $1 is the shard. Lists come as
-- (1,2,3); $rows are the rows of VALUES, each with the shard before it; $json is a list of rows; $a and $b are the columns
-- of one row, and such statements are joined by UNION ALL; $c2 is what each site has in column 2. The requests of a batch
-- come one after another, so stretches of ages are read ($where); `id + 0` keeps the ids from being looked up in them.
-- Of a moment, the time comes first: what is due then is due in that moment too. It is forgotten before, since it
-- stays as it was where there is no such job. Counters that nobody has used are left out: sums are slow.
--
-- take_ready and take_due skip sites that others have locked: a lease never waits for another. lock_sites waits, in the order of
-- the sites. lock_moment, with a lock appended, is the lock of a call; lock_stripe and lock_shard are those of leases.
-- FORCE INDEX where the server might choose a scan, which would lock rows of other workers.
-- keep_done and drop_rows (or keep_alike and drop_alike) move rows from the queue to `done`, in one transaction.
-- insert_seen ignores keys that exist; `duplicates` lists them, since each is a warning.
-- count comes last in a call: its row stays locked until the commit.
-- restarted compares the server that was stored before: of two connections that notice a restart, one counts it. `server` is
-- assigned last, because these servers evaluate assignments from left to right.

-- name: forget_moment
SET @gossamer_job = NULL

-- name: set_moment
SELECT COALESCE(j.clock, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)) + s.skew,
    CONCAT(j.state, '\n', j.revision, '\n', COALESCE(j.clock, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)), '\n',
        s.skew, '\n', s.restarts, '\n', s.rest_until, '\n', s.longest, '\n', COALESCE(s.allowance, ''), '\n', s.phase),
    (SELECT CONCAT_WS(',', SUM(queued), SUM(later), SUM(leased), SUM(held), SUM(done), SUM(failed), SUM(skipped),
        SUM(parked), SUM(stale), SUM(kept), SUM(revisits), SUM(suspects), SUM(known), SUM(sites), SUM(news), SUM(handed),
        MAX(token), MAX(latest_at)) FROM gossamer_counters WHERE shard = $1 AND (latest_at > 0 OR stripe = 0)),
    EXISTS (SELECT 1 FROM gossamer_inbox i WHERE i.job IN (j.name, '') AND i.error IS NULL),
    s.place
    INTO @gossamer_now, @gossamer_job, @gossamer_counts, @gossamer_inbox, @gossamer_place
FROM gossamer_shards s JOIN gossamer_jobs j ON j.job = s.job WHERE s.shard = $1

-- name: set_now
SET @gossamer_now = GREATEST(@gossamer_now, CAST(SUBSTRING_INDEX(@gossamer_counts, ',', -1) AS SIGNED))

-- name: moment
SELECT CONCAT(@gossamer_job, '\n', @gossamer_counts, ',', @gossamer_inbox, '\n', @gossamer_place)

-- name: brief_moment
SELECT CONCAT((SELECT CONCAT(j.state, '\n', j.revision, '\n',
        COALESCE(j.clock, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)))
    FROM gossamer_jobs j WHERE j.job = s.job), '\n',
    s.skew, '\n', s.restarts, '\n', s.rest_until, '\n', s.longest, '\n', COALESCE(s.allowance, ''), '\n', s.phase, '\n',
    COALESCE((SELECT MAX(latest_at) FROM gossamer_counters WHERE shard = $1), 0), ',', s.lulls, '\n', s.place)
FROM gossamer_shards s WHERE s.shard = $1

-- name: lock_stripe
SELECT token INTO @gossamer_token FROM gossamer_counters WHERE shard = $1 AND stripe = $2 FOR UPDATE

-- name: lock_shard
SELECT token INTO @gossamer_token FROM gossamer_counters WHERE shard = $1 AND stripe = 0 FOR UPDATE

-- name: lock_moment
SELECT shard FROM gossamer_shards WHERE shard = $1

-- name: take_ready
SELECT site, name, region, ready_at, hold_at, closed, lanes FROM gossamer_sites FORCE INDEX (gossamer_sites_ready)
WHERE shard = $1 AND region = $2 AND ready_at <= $3 ORDER BY ready_at LIMIT $4 FOR UPDATE SKIP LOCKED

-- name: take_due
SELECT site, name, region, ready_at, hold_at, closed, lanes FROM gossamer_sites FORCE INDEX (gossamer_sites_ready)
WHERE shard = $1 AND region = $2 AND ready_at <= @gossamer_now ORDER BY ready_at LIMIT $3 FOR UPDATE SKIP LOCKED

-- name: next_ready
SELECT site, ready_at FROM gossamer_sites FORCE INDEX (gossamer_sites_ready)
WHERE shard = $1 AND region = $2 AND ready_at > 0 ORDER BY ready_at LIMIT $3

-- name: ready_sites
SELECT region, CAST(SUM(ready_at <= $2) AS SIGNED), CAST(SUM(ready_at > $2) AS SIGNED)
FROM gossamer_sites FORCE INDEX (gossamer_sites_ready) WHERE shard = $1 AND ready_at IS NOT NULL GROUP BY region

-- name: held_sites
SELECT COUNT(*) FROM gossamer_sites FORCE INDEX (gossamer_sites_hold) WHERE shard = $1 AND hold_at > $2

-- name: lock_sites
SELECT site, name, region, ready_at, hold_at, closed, lanes FROM gossamer_sites FORCE INDEX (PRIMARY)
WHERE shard = $1 AND site IN $2 ORDER BY site FOR UPDATE

-- name: try_sites
SELECT site, name, region, ready_at, hold_at, closed, lanes FROM gossamer_sites FORCE INDEX (PRIMARY)
WHERE shard = $1 AND site IN $2 ORDER BY site FOR UPDATE SKIP LOCKED

-- name: peek_sites
SELECT site, name, region, ready_at, hold_at, closed, lanes FROM gossamer_sites WHERE shard = $1 AND site IN $2

-- name: site_states
SELECT site, closed, ready_at IS NULL OR ready_at > wake_at FROM gossamer_sites FORCE INDEX (PRIMARY)
WHERE shard = $1 AND site IN $2

-- name: wake
UPDATE gossamer_sites FORCE INDEX (PRIMARY) SET ready_at = wake_at
WHERE shard = $1 AND site IN $2 AND (ready_at IS NULL OR ready_at > wake_at) AND closed = ''

-- name: insert_sites
INSERT INTO gossamer_sites (shard, site, name, region, ready_at, wake_at, lanes) VALUES $rows

-- name: save_few_sites
UPDATE gossamer_sites FORCE INDEX (PRIMARY)
SET ready_at = $c1, wake_at = $c2, hold_at = $c3, region = $c4, closed = $c5, lanes = $c6
WHERE shard = $1 AND site IN $2

-- name: save_sites
UPDATE JSON_TABLE($json, '$[*]' COLUMNS (site BIGINT PATH '$[0]', ready_at BIGINT PATH '$[1]',
    wake_at BIGINT PATH '$[2]', hold_at BIGINT PATH '$[3]', region VARCHAR(64) PATH '$[4]',
    closed VARCHAR(255) PATH '$[5]', lanes MEDIUMTEXT PATH '$[6]')) n
STRAIGHT_JOIN gossamer_sites s FORCE INDEX (PRIMARY) ON s.shard = $1 AND s.site = n.site
SET s.ready_at = n.ready_at, s.wake_at = n.wake_at, s.hold_at = n.hold_at, s.region = n.region, s.closed = n.closed,
    s.lanes = FROM_BASE64(n.lanes)

-- name: notes
SELECT site, robots, memo FROM gossamer_notes WHERE shard = $1 AND site IN $2

-- name: save_note
REPLACE INTO gossamer_notes (shard, site, robots, memo) VALUES ($1, $2, $3, $4)

-- name: leases_by_token
SELECT token, site, lane, until_at, suspect, worker, batch FROM gossamer_leases FORCE INDEX (PRIMARY)
WHERE shard = $1 AND token IN $2

-- name: leases_of_sites
SELECT token, site, lane, until_at, suspect, worker, batch FROM gossamer_leases FORCE INDEX (gossamer_leases_site)
WHERE shard = $1 AND site IN $2

-- name: leases_of_worker
SELECT token, site, lane, until_at, suspect, worker, batch FROM gossamer_leases
WHERE shard = $1 AND CAST(worker AS BINARY) = CAST($2 AS BINARY)

-- name: insert_leases
INSERT INTO gossamer_leases (shard, token, site, lane, until_at, suspect, worker, batch) VALUES $rows

-- name: save_lease
UPDATE gossamer_leases SET until_at = $3, batch = $4 WHERE shard = $1 AND token = $2

-- name: save_leases
UPDATE JSON_TABLE($json, '$[*]' COLUMNS (token BIGINT PATH '$[0]', until_at BIGINT PATH '$[1]',
    batch MEDIUMTEXT PATH '$[2]')) n
STRAIGHT_JOIN gossamer_leases l FORCE INDEX (PRIMARY) ON l.shard = $1 AND l.token = n.token
SET l.until_at = n.until_at, l.batch = n.batch

-- name: delete_leases
DELETE FROM gossamer_leases WHERE shard = $1 AND token IN $2

-- name: known
SELECT id FROM gossamer_seen FORCE INDEX (PRIMARY) WHERE shard = $1 AND id IN $2

-- name: duplicates
SHOW WARNINGS

-- name: insert_seen
INSERT IGNORE INTO gossamer_seen (shard, id) VALUES $text

-- name: heads
(SELECT site, place, standing, age, id, url, depth, priority, tries, lapses, again, extra FROM gossamer_queue
WHERE shard = $1 AND site = $a AND place = 1 AND standing <= $2 ORDER BY standing, age, id LIMIT $b)
UNION ALL
(SELECT site, place, standing, age, id, url, depth, priority, tries, lapses, again, extra FROM gossamer_queue
WHERE shard = $1 AND site = $a AND place = 2 ORDER BY standing, age, id LIMIT $b)

-- name: suspects
(SELECT site, place, standing, age, id, url, depth, priority, tries, lapses, again, extra FROM gossamer_queue
WHERE shard = $1 AND site = $a AND place = 0 ORDER BY standing, age, id LIMIT $b)

-- name: first_due
SELECT site, MIN(standing) FROM gossamer_queue WHERE shard = $1 AND site IN $2 AND place = 1 AND standing > $3 GROUP BY site

-- name: rows_at
SELECT q.site, q.place, q.standing, q.age, q.id, q.url, q.depth, q.priority, q.tries, q.lapses, q.again, q.extra
FROM JSON_TABLE($json, '$[*]' COLUMNS (site BIGINT PATH '$[0]', place TINYINT PATH '$[1]',
    standing BIGINT PATH '$[2]', age BIGINT PATH '$[3]', id BIGINT PATH '$[4]')) w
STRAIGHT_JOIN gossamer_queue q ON q.shard = $1 AND q.site = w.site AND q.place = w.place AND q.standing = w.standing
    AND q.age = w.age AND q.id = w.id

-- name: waiting_rows
SELECT site, place, standing, age, id, url, depth, priority, tries, lapses, again, extra
FROM gossamer_queue FORCE INDEX (PRIMARY)
WHERE shard = $1 AND site = $2 AND place = 1 AND standing > $3 AND id IN $4 AND again IN (1, 2, 3)

-- name: insert_rows
INSERT INTO gossamer_queue (shard, site, place, standing, age, id, url, depth, priority, tries, lapses, again, extra)
VALUES $text

-- name: insert_new
INSERT INTO gossamer_queue (shard, site, place, standing, age, id, url, depth, extra) VALUES $text

-- name: drop_rows
DELETE q FROM JSON_TABLE($json, '$[*]' COLUMNS (site BIGINT PATH '$[0]', place TINYINT PATH '$[1]',
    standing BIGINT PATH '$[2]', age BIGINT PATH '$[3]', id BIGINT PATH '$[4]')) w
STRAIGHT_JOIN gossamer_queue q ON q.shard = $1 AND q.site = w.site AND q.place = w.place AND q.standing = w.standing
    AND q.age = w.age AND q.id = w.id

-- name: mark_taken
UPDATE JSON_TABLE($json, '$[*]' COLUMNS (site BIGINT PATH '$[0]', place TINYINT PATH '$[1]',
    standing BIGINT PATH '$[2]', age BIGINT PATH '$[3]', id BIGINT PATH '$[4]')) w
STRAIGHT_JOIN gossamer_queue q ON q.shard = $1 AND q.site = w.site AND q.place = w.place AND q.standing = w.standing
    AND q.age = w.age AND q.id = w.id
SET q.again = 0

-- name: keep_done
INSERT INTO gossamer_done (shard, id, site, finished_at, depth, priority, tries, status, code, url)
SELECT q.shard, q.id, q.site, $2, q.depth, q.priority, q.tries, w.status, w.code, q.url
FROM JSON_TABLE($json, '$[*]' COLUMNS (site BIGINT PATH '$[0]', place TINYINT PATH '$[1]',
    standing BIGINT PATH '$[2]', age BIGINT PATH '$[3]', id BIGINT PATH '$[4]', status TINYINT PATH '$[5]',
    code SMALLINT PATH '$[6]')) w
STRAIGHT_JOIN gossamer_queue q ON q.shard = $1 AND q.site = w.site AND q.place = w.place AND q.standing = w.standing
    AND q.age = w.age AND q.id = w.id
ON DUPLICATE KEY UPDATE finished_at = $2, tries = q.tries, status = w.status, code = w.code

-- name: keep_alike
INSERT INTO gossamer_done (shard, id, site, finished_at, depth, priority, tries, status, code, url)
SELECT q.shard, q.id, q.site, $5, q.depth, q.priority, q.tries, $3, $4, q.url FROM gossamer_queue q FORCE INDEX (PRIMARY)
WHERE shard = $1 AND ($where) AND id + 0 IN $2
ON DUPLICATE KEY UPDATE finished_at = $5, tries = q.tries, status = $3, code = $4

-- name: drop_alike
DELETE FROM gossamer_queue WHERE shard = $1 AND ($where) AND id + 0 IN $2

-- name: refuse_rows
INSERT INTO gossamer_done (shard, id, site, depth, priority, status, url, finished_at, tries, code) VALUES $rows
ON DUPLICATE KEY UPDATE shard = gossamer_done.shard

-- name: count_site
SELECT place, again, COUNT(*) FROM gossamer_queue WHERE shard = $1 AND site = $2 AND id NOT IN $3 GROUP BY place, again

-- name: keep_site
INSERT INTO gossamer_done (shard, id, site, finished_at, depth, priority, tries, status, code, url)
SELECT q.shard, q.id, q.site, $5, q.depth, q.priority, q.tries, CASE WHEN q.again IN (1, 2, 3) THEN q.again ELSE $4 END, 0, q.url
FROM gossamer_queue q WHERE q.shard = $1 AND q.site = $2 AND q.id NOT IN $3
ON DUPLICATE KEY UPDATE shard = gossamer_done.shard

-- name: drop_site
DELETE FROM gossamer_queue WHERE shard = $1 AND site = $2 AND id NOT IN $3

-- name: count
UPDATE gossamer_counters SET queued = queued + $3, later = later + $4, leased = leased + $5, held = held + $6,
    done = done + $7, failed = failed + $8, skipped = skipped + $9, parked = parked + $10, stale = stale + $11,
    kept = kept + $12, revisits = revisits + $13, suspects = suspects + $14, known = known + $15, sites = sites + $16,
    news = news + $17,
    handed = handed + $18, token = GREATEST(token, $19), latest_at = GREATEST(latest_at, $20),
    frozen = frozen * 2
WHERE shard = $1 AND stripe = $2

-- name: news
SELECT CAST(SUM(news) AS SIGNED),
    EXISTS (SELECT 1 FROM gossamer_inbox i JOIN gossamer_shards s ON s.shard = $1 JOIN gossamer_jobs j ON j.job = s.job
        WHERE i.job IN (j.name, '') AND i.error IS NULL)
FROM gossamer_counters WHERE shard = $1

-- name: beat
REPLACE INTO gossamer_workers (shard, digest, beat_at, pulse)
VALUES ($1, $2, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), $3)

-- name: workers
SELECT pulse, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) - beat_at FROM gossamer_workers
WHERE shard = $1 AND beat_at > UNIX_TIMESTAMP() * 1000000 - 600000000

-- name: forget_workers
DELETE FROM gossamer_workers WHERE shard = $1 AND beat_at < UNIX_TIMESTAMP() * 1000000 - 86400000000

-- name: job_name
SELECT j.name FROM gossamer_jobs j JOIN gossamer_shards s ON s.job = j.job WHERE s.shard = $1

-- name: take_inbox
SELECT entry, url, priority, TIMESTAMPDIFF(MICROSECOND, NOW(6), available_time) FROM gossamer_inbox
WHERE $1 >= 0 AND job IN ($2, '') AND error IS NULL ORDER BY entry LIMIT $3 FOR UPDATE SKIP LOCKED

-- name: empty_inbox
DELETE FROM gossamer_inbox WHERE $1 >= 0 AND entry IN $2

-- name: refuse_inbox
UPDATE gossamer_inbox SET error = $3 WHERE $1 >= 0 AND entry = $2

-- name: old_done
SELECT id FROM gossamer_done WHERE shard = $1 AND finished_at < $2 AND id > $3 ORDER BY id LIMIT $4

-- name: drop_done
DELETE FROM gossamer_done WHERE shard = $1 AND id IN $2

-- name: drop_seen
DELETE FROM gossamer_seen WHERE shard = $1 AND id IN $2

-- name: make_job
INSERT INTO gossamer_jobs (digest, name, format, revision, settings, secret, state)
SELECT $2, $3, $4, 0, $5, $6, 'running' FROM (SELECT 1) one WHERE $1 >= 0 ON DUPLICATE KEY UPDATE digest = gossamer_jobs.digest

-- name: make_shard
INSERT INTO gossamer_shards (job, number) SELECT j.job, $3 FROM gossamer_jobs j WHERE $1 >= 0 AND j.digest = $2
ON DUPLICATE KEY UPDATE number = gossamer_shards.number

-- name: make_stripes
INSERT INTO gossamer_counters (shard, stripe)
SELECT $1, n.stripe FROM JSON_TABLE($json2, '$[*]' COLUMNS (stripe INT PATH '$')) n
ON DUPLICATE KEY UPDATE shard = gossamer_counters.shard

-- name: restarted
UPDATE gossamer_shards SET restarts = restarts + CASE server WHEN '' THEN 0 ELSE 1 END,
    rest_until = CASE server WHEN '' THEN rest_until ELSE longest + GREATEST(
        COALESCE((SELECT MAX(latest_at) FROM gossamer_counters c WHERE c.shard = $1), 0),
        skew + COALESCE((SELECT j.clock FROM gossamer_jobs j WHERE j.job = gossamer_shards.job),
            CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED))) END,
    server = $2
WHERE shard = $1 AND server = $3

-- name: is_outbox
SELECT COUNT(*) FROM information_schema.tables
WHERE $1 >= 0 AND table_schema = DATABASE() AND table_name = 'gossamer_parcels'

-- name: put_box
INSERT INTO gossamer_boxes (shard, box, stripe, server, run, taken, added) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON DUPLICATE KEY UPDATE added = gossamer_boxes.added + $8
