-- Takes `stored_sizes`, and counts by part as `part_sizes.py` does: the two must agree for ever.
local sizes, parts = {}, {}
do
  local at = 1
  while at <= #stored_sizes do
    local entries, bytes, part
    entries, bytes, part, at = unpack_struct('>I8I8Bc0', stored_sizes, at)
    parts[#parts + 1] = {entries, bytes, part}
    sizes[part] = parts[#parts]
  end
end
local function count(key, entries, bytes)
  local stop = byte(key, 2) == TEXT_TAG and string.find(key, '\0', 3, true)
  local part = stop and stop <= PART_BYTES and sub(key, 1, stop) or sub(key, 1, 1)
  if not sizes[part] and #parts >= COUNTED_PARTS then part = sub(key, 1, 1) end
  local size = sizes[part]
  if not size then
    size = {0, 0, part}
    parts[#parts + 1], sizes[part] = size, size
  end
  size[1], size[2] = size[1] + entries, size[2] + bytes
end
local function encoded_sizes()
  local encoded = {}
  for n, size in ipairs(parts) do encoded[n] = pack('>I8I8B', size[1], size[2], #size[3]) .. size[3] end
  return table.concat(encoded)
end
