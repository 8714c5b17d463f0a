-- Adds a change to a log record, if the log keeps changes of its section. All backends count the same record sizes.
local function change(record, key, old, new, is_deleted, is_expired)
  local section = byte(key)
  record.size = record.size + CHANGE_BYTES + (is_deleted and 0 or #key)
  if section == OBJECTS then return end
  if section ~= WITH_VALUES then old, new = nil, nil end
  local n, flags = #record, (is_deleted and 1 or 0) + (old and 2 or 0) + (new and 4 or 0)
  if is_expired and old and not is_deleted then flags = flags + 8 end
  record[n + 1], record[n + 2], n = pack('>BI2', flags, #key), key, n + 2
  if old then record[n + 1], record[n + 2], n = pack('>I4', #old), old, n + 2 end
  if new then record[n + 1], record[n + 2], n = pack('>I4', #new), new, n + 2 end
  record.count, record.size = record.count + 1, record.size + #(old or '') + #(new or '')
end
