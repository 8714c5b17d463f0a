/** Listings that come page by page. */

/** A page of a listing; `next` continues behind it. */
export interface Page<T> {
  items: T[];
  next: string | null;
}

/** Yield the items of all pages, each page asked for when it is needed. */
export async function* allOf<T>(
  pageAfter: (after: string | undefined) => Promise<Page<T>>,
): AsyncGenerator<T, void, undefined> {
  let after: string | undefined;
  do {
    const page: Page<T> = await pageAfter(after);
    yield* page.items;
    after = page.next ?? undefined;
  } while (after !== undefined);
}
