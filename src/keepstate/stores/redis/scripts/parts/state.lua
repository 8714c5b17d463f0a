-- Unpacks the state `stored`, and compares it with `mark`, the last mark that the client has seen.
if stored then
  local format = byte(stored)
  if format ~= FORMAT then return {'format', format} end
  format, revision, nonce, floor, clock, due, retries, log_bytes, floor_nonce, leap_revision, leap_from, leap_to =
    unpack_struct(STATE, stored)
end
if mark ~= '' then
  local seen, seen_nonce = unpack_struct('>I8c8', mark)
  if seen > revision or (seen == revision and seen_nonce ~= nonce) then return {'lost'} end
  if seen == floor and seen_nonce ~= floor_nonce then return {'lost'} end
  if seen < revision and seen > floor then
    local head = call('HGET', LOG, 'n' .. sub(mark, 1, 8))
    if not head or sub(head, 1, 8) ~= seen_nonce then return {'lost'} end
  end
end
