/* One clock for all relative times of the page: it moves once in five seconds, while the page is seen. */

export const clock = $state({ now: Date.now() });

setInterval(() => {
  if (!document.hidden) clock.now = Date.now();
}, 5_000);

/** Return a time relative to now, such as "3 min ago" or "in 2 h". */
export function relative(instant: string, now: number): string {
  const seconds = (Date.parse(instant) - now) / 1000;
  const distance = Math.abs(seconds);
  if (distance < 10) return "now";
  const [unit, name] = UNITS.find(([length]) => distance < length * 100 || length === 86_400)!;
  if (distance >= 86_400 * 30) return instant.slice(0, 10);
  const count = Math.round(distance / unit);
  return seconds < 0 ? `${count} ${name} ago` : `in ${count} ${name}`;
}

const UNITS: [number, string][] = [
  [1, "s"],
  [60, "min"],
  [3_600, "h"],
  [86_400, "d"],
];

/** Return an instant as people read it: the local date and time, to the second. */
export function local(instant: string): string {
  const date = new Date(instant);
  const two = (number: number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}
