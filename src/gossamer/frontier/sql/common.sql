-- Statements that are the same in every database. $1 is the shard; statements that do not need it mention it as $1 >= 0.
--
-- frozen: `freeze` sets it to 2^62, and every write of the counters doubles it. Doubling 2^62 overflows, so from then on no
-- transaction can commit a change of the shard, not even one that began before.
-- hasten_row names the whole position of a row. If another worker has moved the row meanwhile, nothing is changed.
-- renew_job raises the revision if the settings differ; every call compares it, and reads the settings again. A job that was
-- stopping runs again.
-- propose_root keeps a placement that is there: of several clients that create a job at once, the first one decides.
-- drop_box deletes an empty box only, in case a parcel has been put into it since it was read.

-- name: set_skew
UPDATE gossamer_shards SET skew = GREATEST(skew, $2) WHERE shard = $1

-- name: set_longest
UPDATE gossamer_shards SET longest = GREATEST(longest, $2) WHERE shard = $1

-- name: count_lull
UPDATE gossamer_shards SET lulls = lulls + 1 WHERE shard = $1

-- name: count_fresh
UPDATE gossamer_counters SET pages = pages + $3, fresh = fresh + $4 WHERE shard = $1 AND stripe = $2

-- name: freshness
SELECT SUM(pages), SUM(fresh) FROM gossamer_counters WHERE shard = $1

-- name: any_ready
SELECT EXISTS (SELECT 1 FROM gossamer_sites WHERE shard = $1 AND ready_at IS NOT NULL)

-- name: any_due
SELECT EXISTS (
    SELECT 1 FROM gossamer_sites s WHERE s.shard = $1 AND s.closed = '' AND EXISTS (
        SELECT 1 FROM gossamer_queue q WHERE q.shard = $1 AND q.site = s.site AND q.place = 1 AND q.standing <= $2))

-- name: other_format
SELECT format FROM gossamer_jobs WHERE $1 >= 0 AND format <> $2 LIMIT 1

-- name: leases
SELECT token, site, lane, until_at, suspect, worker, batch FROM gossamer_leases WHERE shard = $1

-- name: is_seen
SELECT EXISTS (SELECT 1 FROM gossamer_seen WHERE shard = $1 AND id = $2)

-- name: row_of
SELECT site, place, standing, age, id, url, depth, priority, tries, lapses, again, extra
FROM gossamer_queue WHERE shard = $1 AND site = $2 AND id = $3

-- name: hasten_row
UPDATE gossamer_queue SET standing = $6, extra = $7
WHERE shard = $1 AND site = $2 AND place = 1 AND standing = $3 AND age = $4 AND id = $5

-- name: done_of
SELECT status, code, depth, priority, tries, finished_at FROM gossamer_done WHERE shard = $1 AND id = $2

-- name: steer
UPDATE gossamer_jobs SET state = $2 WHERE job = (SELECT job FROM gossamer_shards WHERE shard = $1)

-- name: settings
SELECT j.settings, j.revision FROM gossamer_jobs j JOIN gossamer_shards s ON s.job = j.job WHERE s.shard = $1

-- name: sites
SELECT s.name, s.region, s.hold_at, s.ready_at, s.closed, s.lanes,
    (SELECT COUNT(*) FROM gossamer_queue q WHERE q.shard = s.shard AND q.site = s.site AND q.again NOT IN (1, 2, 3)) AS waiting
FROM gossamer_sites s WHERE s.shard = $1 ORDER BY waiting DESC, s.name LIMIT $2

-- name: every_site
SELECT s.site, s.name, s.region, s.hold_at, s.ready_at, s.closed, s.lanes,
    (SELECT COUNT(*) FROM gossamer_queue q WHERE q.shard = s.shard AND q.site = s.site AND q.again NOT IN (1, 2, 3)) AS waiting
FROM gossamer_sites s WHERE s.shard = $1 AND s.site > $2 ORDER BY s.site LIMIT $3

-- name: site
SELECT site, name, region, ready_at, hold_at, closed, lanes FROM gossamer_sites WHERE shard = $1 AND site = $2

-- name: waiting_of
SELECT COUNT(*) FROM gossamer_queue WHERE shard = $1 AND site = $2 AND again NOT IN (1, 2, 3)

-- name: renew_job
UPDATE gossamer_jobs SET revision = revision + CASE WHEN settings = $4 THEN 0 ELSE 1 END, settings = $4,
    state = CASE state WHEN 'stopping' THEN 'running' ELSE state END
WHERE $1 >= 0 AND digest = $2 AND format = $3

-- name: find_shard
SELECT s.shard FROM gossamer_shards s JOIN gossamer_jobs j ON j.job = s.job WHERE $1 >= 0 AND j.digest = $2 AND s.number = $3

-- name: read_job
SELECT s.shard, j.format, j.revision, j.settings, j.secret FROM gossamer_shards s JOIN gossamer_jobs j ON j.job = s.job
WHERE $1 >= 0 AND j.digest = $2 AND s.number = $3

-- name: last_server
SELECT server FROM gossamer_shards WHERE shard = $1

-- name: ledger
SELECT allowance, reserved FROM gossamer_shards WHERE shard = $1

-- name: set_ledger
UPDATE gossamer_shards SET allowance = $2, reserved = $3 WHERE shard = $1

-- name: read_root
SELECT format, revision, settings, secret, placement, made FROM gossamer_jobs WHERE $1 >= 0 AND digest = $2

-- name: list_jobs
SELECT name FROM gossamer_jobs WHERE $1 >= 0 ORDER BY name LIMIT 1000

-- name: propose_root
UPDATE gossamer_jobs SET placement = COALESCE(placement, $3) WHERE $1 >= 0 AND digest = $2

-- name: place_root
UPDATE gossamer_jobs SET placement = $3, made = 1 WHERE $1 >= 0 AND digest = $2

-- name: shard_phase
SELECT s.shard, s.phase, s.place FROM gossamer_shards s JOIN gossamer_jobs j ON j.job = s.job
WHERE $1 >= 0 AND j.digest = $2 AND s.number = $3

-- name: lock_phase
SELECT phase, place FROM gossamer_shards WHERE shard = $1 FOR UPDATE

-- name: set_phase
UPDATE gossamer_shards SET phase = $2, place = $3 WHERE shard = $1

-- name: freeze
UPDATE gossamer_counters SET frozen = 4611686018427387904 WHERE shard = $1

-- name: unfreeze
UPDATE gossamer_counters SET frozen = 0 WHERE shard = $1

-- name: tell
UPDATE gossamer_counters SET news = news + 1 WHERE shard = $1 AND stripe = 0

-- name: shard_times
SELECT restarts, rest_until, longest, allowance, reserved FROM gossamer_shards WHERE shard = $1

-- name: set_shard_times
UPDATE gossamer_shards SET restarts = $2, rest_until = $3, longest = $4, allowance = $5, reserved = $6, skew = $7,
    server = $8, phase = 0, place = $9 WHERE shard = $1

-- name: drop_counters
DELETE FROM gossamer_counters WHERE shard = $1

-- name: shards_of
SELECT s.shard FROM gossamer_shards s JOIN gossamer_jobs j ON j.job = s.job WHERE $1 >= 0 AND j.digest = $2

-- name: remove_workers
DELETE FROM gossamer_workers WHERE shard = $1

-- name: remove_shard
DELETE FROM gossamer_shards WHERE shard = $1

-- name: remove_job
DELETE FROM gossamer_jobs WHERE $1 >= 0 AND digest = $2

-- name: count_parcels
SELECT COALESCE(SUM(added - taken), 0) FROM gossamer_boxes WHERE shard = $1

-- name: lock_boxes
SELECT box, stripe, server, run, taken, added, marked, lived, swept_at FROM gossamer_boxes WHERE shard = $1
ORDER BY box, stripe FOR UPDATE

-- name: lock_box
SELECT box, stripe, server, run, taken, added, marked, lived, swept_at FROM gossamer_boxes
WHERE shard = $1 AND box = $2 AND stripe = $3 FOR UPDATE

-- name: box_end
SELECT added FROM gossamer_boxes WHERE shard = $1 AND box = $2 AND stripe = $3

-- name: save_box
UPDATE gossamer_boxes SET taken = $4, marked = $5, lived = $6, swept_at = $7 WHERE shard = $1 AND box = $2 AND stripe = $3

-- name: drop_box
DELETE FROM gossamer_boxes WHERE shard = $1 AND box = $2 AND stripe = $3 AND taken = added

-- name: put_parcel
INSERT INTO gossamer_parcels (shard, box, stripe, number, links) VALUES ($1, $2, $3, $4, $5)

-- name: read_parcels
SELECT links FROM gossamer_parcels WHERE shard = $1 AND box = $2 AND stripe = $3 ORDER BY number LIMIT $4

-- name: drop_parcels
DELETE FROM gossamer_parcels WHERE shard = $1 AND box = $2 AND stripe = $3 AND number < $4

-- name: stored_rows
-- Finished URLs that have a record: a URL that was given up with its site, which was never fetched, has no code.
SELECT d.id, s.name, d.url, d.depth, d.priority, d.status
FROM gossamer_done d JOIN gossamer_sites s ON s.shard = d.shard AND s.site = d.site
WHERE d.shard = $1 AND d.id > $2 AND (d.status = 1 OR (d.status = 2 AND (d.code <> 0 OR s.closed IN ('', 'budget'))))
ORDER BY d.id LIMIT $3

-- name: site_numbers
SELECT site FROM gossamer_sites WHERE shard = $1 AND site > $2 ORDER BY site LIMIT $3

-- name: revisit_rows
SELECT site, place, standing, age, id, url, depth, priority, tries, lapses, again, extra
FROM gossamer_queue WHERE shard = $1 AND site = $2 AND place = 1 AND again IN (1, 2)
