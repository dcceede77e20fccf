-- The frontier of one shard of a job. Every call is one run of this script, and so atomic. Redis does not undo what a failed
-- script has written: whatever may refuse a call is checked before the first write that matters.
--
-- KEYS[1] is the shard's record; all other keys share its hash tag. KEYS[2] never exists: it makes a cluster refuse the
-- call while the slot is on its way to another node, where half of the keys would be missing.
-- ARGV: the operation, its arguments in msgpack, and the entries of the links, one behind the other. For each operation some
-- files of this folder are one script: connection.py names them. One script of all files would define every function on
-- every call.
--
--   job            hash    state, counters, the last token, the last time
--   seen:N         sets    of the integers of known keys; linear hashing keeps each below 512, where Redis packs them
--   site:S         hash    delay, hold, closed, lanes, and for lane i: t(oken) e(xpires) n(ext) w(orker) x(suspect)
--                          l(ast token) r(estart after which its clock is known)
--                          and what it was handed in the half numbered sh: sn, and in the one before: sb
--   robots:S       hash    origin -> rules        memo:S  hash  name -> value
--   ranks:S        zset    the ranks of queue:S:R, lists of entries, and of blocks of them, in their order; none is empty
--   front:S        list    entries that go first  suspects:S  list  entries that go alone
--   later:S        zset    entry, or 254 and the rank of a slot of far revisits -> when it is due
--   batch:S:I      hash    key -> place in the order (4 characters) and entry, of the lane's lease
--   held           hash    token -> lane, site
--   ready:REGION   zset    "lane site" -> when the lane is ready; a leased one when its lease has ended. Every lane of
--                          a site on which something waits is there.
--   regions        set     the regions that sites are in
--   dues           zset    site -> when the first of later:S is due, for the sites that have any
--   lapses         hash    key -> lost deliveries
--   workers        hash    name -> the last heartbeat    beats  zset  name -> when it came
--   boxes          hash    "run server" -> first, marked, lived, at: the boxes of the outbox (outbox.py)
--   outbox:RUN SERVER  list  its parcels, oldest first
--
-- An entry is a key (8 bytes) and a msgpack array; what is in it is the client's but for the fields named here.
local TRIES, STATE, AGAIN = 6, 8, 9
local DEFAULTS = { '', 0, '', 0, 0, 0, '', '', '' }
local FORMAT = '2'
-- Twice as many in a bucket, which it may have before its turn to be split comes, stay well below the 512 of Redis.
local SEEN_LOAD = 184
local MANY = 1000

local job_key = KEYS[1]
local prefix = string.sub(job_key, 1, -4)
local call = redis.call
local operation, given = ARGV[1], cmsgpack.unpack(ARGV[2])
local entries = ARGV[3] or ''

local FIELDS = {
    'format', 'state', 'strategy', 'delay', 'robots', 'lanes', 'budget', 'max_deliveries', 'now', 'skew', 'clock',
    'token', 'news', 'shard', 'shards', 'allowance', 'reserved', 'run', 'recrawl',
    'moved', 'moving', 'leaving', 'arriving', 'nonce', 'moving_until', 'generation',
    'share_most', 'share_half', 'handed', 'max_pages',
    'seen_level', 'seen_split', 'known', 'sites', 'queued', 'delayed', 'leased', 'stored', 'done', 'failed', 'skipped',
    'parked', 'stale', 'revisits', 'pages', 'fresh', 'lapsed', 'restarts', 'rest_until', 'longest', 'forget', 'fold', 'outbox', 'posted',
}
local job = {}
for index, value in ipairs(call('HMGET', job_key, unpack(FIELDS))) do job[FIELDS[index]] = value or nil end
if not job.format and operation ~= 'prepare' then return redis.error_reply('JOBMISSING there is no such job') end
if job.format and job.format ~= FORMAT then return redis.error_reply('OTHERFORMAT ' .. job.format) end

-- The run of this server. A start changes its run id; a promotion changes the id of its replication, also when the same process
-- is promoted for the second time.
local was_promoted = false
local function run_now()
    local about = redis.pcall('INFO', 'server', 'replication')
    if type(about) ~= 'string' then return nil end
    -- The id of the replication that this server followed as a replica; all zeros if it never did.
    was_promoted = string.find(about, 'master_replid2:0*[1-9a-f]') ~= nil
    local life, replication = string.match(about, 'run_id:(%x+)'), string.match(about, 'master_replid:(%x+)')
    return life and replication and life .. '-' .. replication
end

-- Whether this copy of the shard may be used: move.py has the protocol. The operations of a move check that for themselves.
local MOVES = {
    depart = true, renew = true, leave = true, follow = true, confirm = true, reclaim = true, bury = true, clear = true,
    stay = true, prepare = true, land = true, arrive = true, settle = true, kill = true,
}
if not MOVES[operation] then
    if job.moved then return redis.error_reply('SHARDMOVED ' .. job.moved) end
    if job.arriving then return redis.error_reply('SHARDARRIVING ' .. job.arriving .. ' ' .. (job.nonce or '')) end
    if job.moving then
        if tonumber(call('TIME')[1]) < tonumber(job.moving_until or '0') then
            return redis.error_reply('TRYAGAIN this shard is on its way to ' .. job.moving)
        end
        -- The mover is dead: its claim has expired, and this call ends the attempt.
        call('HDEL', job_key, 'moving', 'moving_until')
        job.moving = nil
    end
    if job.leaving and job.run then
        local run = run_now()
        -- The server restarted after the announcement, and may have forgotten that the shard has left.
        if run and run ~= job.run then return redis.error_reply('SHARDLEFT ' .. job.leaving .. ' ' .. run) end
    end
end

local counted = {}
local function number(name) return tonumber(job[name] or '0') end
local function count(name, by)
    if by ~= 0 then counted[name] = (counted[name] or 0) + by end
end
local function total(name) return number(name) + (counted[name] or 0) end

-- The clock of the store, or of a test. Within a job each call has a later time than the one before: when the server's clock
-- steps back, `skew` makes up for it from then on.
local now, skew = tonumber(job.clock or ''), number('skew')
if not now then
    local time = call('TIME')
    now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
skew = math.max(skew, number('now') + 0.000001 - now)
now = math.floor((now + skew) * 1000000 + 0.5) / 1000000
local SOON = now + 0.00001
-- Each run of a script starts with the same seed.
if job.strategy == 'random' then math.randomseed(now * 1000000 % 2147483647) end

local function text(value) return string.format('%.6f', value) end
local function whole(value) return string.format('%.0f', value + 0) end
local function key_of(entry) return string.sub(entry, 1, 8) end
local function place(name, site) return prefix .. name .. ':' .. site end
local function member(site, lane) return lane .. ' ' .. site end
local function damaged(key, what) error({ err = 'DAMAGED ' .. key .. ' ' .. what }) end
local function with_all(command, key, values)
    for first = 1, #values, MANY do call(command, key, unpack(values, first, math.min(first + MANY - 1, #values))) end
end

-- The fields of an entry; none if it is unreadable. Such an entry goes to a client like any other, which has it parked.
local function fields_of(entry)
    local is_whole, fields = pcall(cmsgpack.unpack, string.sub(entry, 9))
    if not is_whole or type(fields) ~= 'table' then return {} end
    for index = #fields + 1, #DEFAULTS do fields[index] = DEFAULTS[index] end
    return fields
end
local function with_fields(entry, fields) return key_of(entry) .. cmsgpack.pack(fields) end

local present_run
local function count_restart()
    -- A primary that was replaced may grant and extend leases until it is demoted.
    local rest = number('longest') + (was_promoted and number('forget') or 0)
    job.restarts, job.rest_until = whole(number('restarts') + 1), text(now + rest)
    call('HSET', job_key, 'restarts', job.restarts, 'rest_until', job.rest_until)
end
-- Called at the start of every operation that writes. The record remembers the run in which it was last written; another run
-- means that leases may be forgotten, so `count_restart` makes all lanes rest until the longest lease has ended.
local function notice_restart()
    local run = run_now()
    present_run = run
    -- Without the right to run INFO the run is unknown, which is no sign of a restart.
    if not run or job.run == run then return end
    if job.run then count_restart() end
    job.run = run
    call('HSET', job_key, 'run', run)
end
-- Redis refuses the first write of a script that needs memory when its memory is full, and lets a script that has already
-- written go on. So an operation that adds data starts with such a write and is refused as a whole. One that must pass
-- on a full server (releasing, extending, completing without links) starts with a deletion, which needs no memory.
local function needs_memory()
    call('HSET', job_key, 'now', text(now))
    notice_restart()
end
local function needs_no_memory()
    call('HDEL', job_key, '')
    notice_restart()
end

local operations, admitted = {}, 0

