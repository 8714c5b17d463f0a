/** Errors by the `code` of a problem, as one tree. Decide by class, or by `code` and `retryable`. */

/** The facts of an error. */
export interface Problem {
  code: string;
  status?: number;
  retryable?: boolean;
  facts?: Record<string, unknown>;
}

/** Base class of every error of the client and of the server. */
export class KeepstateError extends Error {
  /** The stable code; docs/reference/errors.md lists those of the library. */
  readonly code: string;
  /** The status of the response; 0 if there was none. */
  readonly status: number;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;
  /** Facts of the error, such as the key and the version that was found. */
  readonly facts: Record<string, unknown>;

  constructor(message: string, problem: Problem = { code: "keepstate" }, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.code = problem.code;
    this.status = problem.status ?? 0;
    this.retryable = problem.retryable ?? false;
    this.facts = problem.facts ?? {};
  }
}

/** Another writer was first: read again, and decide again. */
export class ConflictError extends KeepstateError {}
/** A condition of the request was false: the document is there in another version, or is not there. */
export class PreconditionFailedError extends ConflictError {}
/** The claim or the lease was lost: stop what it guarded. */
export class LeaseLostError extends ConflictError {}
/** The approval was answered before, has expired or was withdrawn: read it. */
export class ApprovalClosedError extends ConflictError {}
/** Both sides of a merge changed the same value: give a rule, or change one side. */
export class MergeConflictError extends ConflictError {}
/** The thing to read or change does not exist. */
export class NotFoundError extends KeepstateError {}
/** The thing to create exists already. */
export class AlreadyExistsError extends KeepstateError {}
/** The call is wrong: correct it. */
export class InvalidError extends KeepstateError {
  constructor(message: string, problem: Problem = { code: "invalid" }, options?: ErrorOptions) {
    super(message, problem, options);
  }
}
/** The present state does not allow this. */
export class TransitionError extends InvalidError {}
/** Whether a step with `once` was done is unknown: find out, and settle it. */
export class StepUnknownError extends TransitionError {}
/** The key is unknown, has expired or was revoked. */
export class UnauthenticatedError extends KeepstateError {}
/** The key does not have the right to do this, or does not reach the space. */
export class NotAllowedError extends KeepstateError {}
/** A quota or a budget is used up. */
export class QuotaExceededError extends KeepstateError {}
/** The key sent too many requests, or has too many streams: wait. */
export class TooManyRequestsError extends KeepstateError {}
/** The task ended without a result. */
export class TaskFailedError extends KeepstateError {}
/** The task was cancelled. */
export class TaskCancelledError extends KeepstateError {}
/** Retention deleted it, or the log no longer reaches back that far: read the present state. */
export class CompactedError extends KeepstateError {}
/** The store lost acknowledged writes: read again. */
export class HistoryLostError extends KeepstateError {}
/** The server or its store was not reached, and nothing was written: retry later. */
export class UnavailableError extends KeepstateError {}
/** No reply came. The write may or may not have been applied: read, and decide. */
export class OutcomeUnknownError extends KeepstateError {}

type ErrorClass = new (message: string, problem: Problem, options?: ErrorOptions) => KeepstateError;

const CLASSES: Readonly<Record<string, ErrorClass>> = {
  conflict: ConflictError,
  state_conflict: ConflictError,
  precondition_failed: PreconditionFailedError,
  lease_lost: LeaseLostError,
  approval_closed: ApprovalClosedError,
  merge_conflict: MergeConflictError,
  not_found: NotFoundError,
  already_exists: AlreadyExistsError,
  invalid: InvalidError,
  malformed: InvalidError,
  too_large: InvalidError,
  unsupported_media_type: InvalidError,
  idempotency_key_reused: InvalidError,
  transition: TransitionError,
  step_unknown: StepUnknownError,
  unauthenticated: UnauthenticatedError,
  forbidden: NotAllowedError,
  not_allowed: NotAllowedError,
  not_owner: NotAllowedError,
  wrong_host: NotAllowedError,
  wrong_origin: NotAllowedError,
  quota_exceeded: QuotaExceededError,
  budget_exceeded: QuotaExceededError,
  too_many_requests: TooManyRequestsError,
  too_many_streams: TooManyRequestsError,
  task_failed: TaskFailedError,
  task_cancelled: TaskCancelledError,
  compacted: CompactedError,
  pruned: CompactedError,
  history_lost: HistoryLostError,
  unavailable: UnavailableError,
  stopping: UnavailableError,
  slow_reader: UnavailableError,
  outcome_unknown: OutcomeUnknownError,
  deadline: OutcomeUnknownError,
};

/** Return the error of problem details, or of a response that has none. */
export function errorOf(content: unknown, status: number): KeepstateError {
  const { code, detail, retryable, facts } = (content ?? {}) as Record<string, unknown>;
  if (typeof code !== "string") {
    // Not of keepstate: a proxy in front of it answered.
    const kind = {
      429: TooManyRequestsError,
      502: UnavailableError,
      503: UnavailableError,
      504: UnavailableError,
    }[status];
    const problem = { code: `http_${status}`, status, retryable: kind !== undefined };
    return new (kind ?? KeepstateError)(
      `the response has the status ${status}, and no problem of keepstate`,
      problem,
    );
  }
  const problem: Problem = {
    code,
    status,
    retryable: retryable === true,
    facts: (facts ?? {}) as Record<string, unknown>,
  };
  return new (CLASSES[code] ?? KeepstateError)(typeof detail === "string" ? detail : code, problem);
}
