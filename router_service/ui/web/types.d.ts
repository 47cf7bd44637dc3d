// Written by `python -m tests.page.declarations` from the models of the page's JSON API.

/** Pools of the available models: the efficient ones, and one to use for each size. */
export interface Advice {
  artifact: string;
  /** The available arms. */
  arms: Array<string>;
  /** The most accurate of them alone. */
  best_single: string;
  queries: number;
  /** Queries on which pools and rules were picked. */
  searched: number;
  /** Pools that were compared. */
  pools: number;
  /**
   * By kind and number of models, then by cost: no pool of at most as many models is cheaper and
   * about as accurate.
   */
  efficient: Array<PoolFigures>;
  /** The most accurate pool of each kind and size within `cost_share`. */
  recommended: Array<Recommendation>;
  /** Largest cost of a recommended pool, relative to the best single model. */
  cost_share: number;
  has_verified: boolean;
}

/** The content of an answer. */
export interface AnswerContent {
  calls: Array<LoggedCall> | null;
  text: string | null;
}

/** An arm of the artifact. */
export interface ArmCard {
  arm: string;
  model: string;
  basis: Basis;
  cost_usd: number;
  accuracy: Measure | null;
  profile: ArmProfile;
}

/**
 * Usage and cost of an arm on the training queries (paper, appendix on the cost model).
 *
 * `input_tokens` and `output_tokens` are means over the queries, as the arm's provider counts
 * them, and `seconds` is the mean duration. A value is 0 if it was not measured and has no price.
 * Together with the price they give the mean profiled cost, including the effect of long answers.
 */
export interface ArmProfile {
  input_tokens: number;
  output_tokens: number;
  seconds: number;
  price: Price;
  /** Training queries profiled. */
  n: number;
}

/** An arm's probability and expected cost, and the pool's model for it. */
export interface ArmView {
  arm: string;
  model: string;
  probability: number;
  cost_usd: number;
}

/** The artifact: its provenance, its policies and its measured results. */
export interface ArtifactCard {
  name: string;
  version: string;
  encoder: Encoder;
  budget_tokens: number;
  tool_budget_tokens: number;
  template: string;
  features: number;
  calibration: string;
  execution: Execution;
  policies: Record<string, string>;
  rules: Array<Control>;
  model_name: string;
  default_policy: string;
  expected: Array<string>;
  frontier: Array<FrontierPoint>;
  efficient: Array<string>;
  is_sandbox: boolean;
  verified_policy: string | null;
  verified_frontier: Array<FrontierPoint>;
  verified_efficient: Array<string>;
  metrics: Record<string, Measure>;
  estimated_arms: Array<string>;
  arms: Array<ArmCard>;
  known_arms: number;
  has_held_out: boolean;
  unrouted: Array<UnroutedModel>;
  knowledge: string | null;
  provenance: Provenance;
}

/** Why a model serves an arm. */
export type Basis = "id" | "name" | "unproven" | "stated" | "stand_in" | "estimated";

/** The most that may be spent in a period. */
export interface Budget {
  usd: number;
  /** Days begin at 0:00 UTC, and weeks on Monday; `total` never starts again. */
  period: BudgetPeriod;
}

/**
 * How a budget that runs out has changed a request's policy.
 *
 * Accuracies and costs are those of measured queries; None if the policy was not measured.
 */
export interface BudgetChange {
  subject: string;
  share_left: number;
  until: number | null;
  asked: string;
  asked_accuracy: number | null;
  asked_cost_usd: number | null;
  policy: string;
  expected_accuracy: number;
  expected_cost_usd: number;
}

/** Time after which a budget starts again. Days begin at 0:00 UTC, and weeks on Monday. */
export type BudgetPeriod = "day" | "week" | "month" | "total";

/** A budget, and what is left of it. */
export interface BudgetView {
  usd: number;
  period: BudgetPeriod;
  /** Spent in the present period, up to the last second. */
  spent_usd: number;
  starts: string;
  /** When the next period begins; null for `total`. */
  resets: string | null;
  /** When the budget is expected to be spent, at the pace of this period; null if it lasts. */
  ends_by: string | null;
}

/** One candidate answer of a verified request, and its outcome. */
export interface CandidateRecord {
  arm: string;
  model: string;
  step: number;
  is_accepted: boolean;
  p_correct: number | null;
  first_p_correct: number | null;
  expected_gain: number | null;
  ungrounded: Array<string>;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  cost_usd: number | null;
  seconds: number;
  failure: string | null;
  calls: number | null;
  content: AnswerContent | null;
}

/** A candidate of the user's own request: its record, and the beginning of its answer. */
export interface CandidateView {
  arm: string;
  model: string;
  step: number;
  is_accepted: boolean;
  p_correct?: number | null;
  first_p_correct?: number | null;
  expected_gain?: number | null;
  ungrounded?: Array<string>;
  prompt_tokens?: number | null;
  completion_tokens?: number | null;
  cost_usd?: number | null;
  seconds: number;
  failure?: string | null;
  calls?: number | null;
  content?: AnswerContent | null;
  written?: Array<string>;
  text?: string | null;
  same_as?: string | null;
}

/** The arm that a policy chooses for given probabilities and costs. */
export interface Choice {
  policy: string;
  arm: string;
  reason: Reason;
  floor: number | null;
}

/** What the comparisons of one key, of one tool, or all say. */
export interface ComparedGroup {
  name: string;
  comparisons: number;
  same: number;
  low: number;
  high: number;
  usd: number;
  other_usd: number;
  seconds: number;
  other_seconds: number;
}

/** How one model's answers compare with the delivered ones. */
export interface ComparedModel {
  other: string;
  failed: number;
  spent_usd: number;
  sentence: string;
  total: ComparedGroup | null;
  keys: Array<ComparedGroup>;
  tools: Array<ComparedGroup>;
}

/**
 * What people see of a policy where they can choose its number, as on the page.
 *
 * The page has one step for each value that was measured (`Policy.measured_values`).
 */
export interface Control {
  rule: string;
  kind: "once" | "verified";
  title: string;
  legend: string;
  explanation: string;
  parameter: string;
  unit: Unit;
  least: number;
  most: number | null;
  larger_is_cheaper: boolean;
}

/** A key with its secret, which is shown only once. */
export interface CreatedKey {
  secret: string;
  key: KeyView;
}

/** Name and size of the encoder that the router was fine-tuned from. */
export interface Encoder {
  name: string;
  parameters: number;
  hidden_size: number;
  layers: number;
}

/** How a router runs its model. */
export interface Execution {
  graph: string;
  provider: string;
  warning: string | null;
}

/** The plan for a request, and the reasons for it. */
export interface Explained {
  reason: string;
  overruled: string | null;
  candidates: Array<string>;
  chosen: Choice;
  explanation: string;
  familiarity: number | null;
  is_unfamiliar: boolean;
  baseline: string | null;
  arms: Array<ArmView>;
  excluded: Array<string>;
  choices: Array<Choice>;
  explanations: Array<string>;
  verification: VerificationView | null;
  view: PackedView;
  decided_s: number;
  first_predicted_s: number | null;
  unread: Array<string>;
}

/** A decision record, and why its model answered. */
export interface ExplainedDecision {
  id: string;
  created: number;
  model: string;
  key: string | null;
  team: string | null;
  deployment: string | null;
  attempts: number;
  arm: string | null;
  release: string | null;
  reason: string;
  policy: string | null;
  policy_name: string | null;
  propensity: number | null;
  probabilities: Record<string, number> | null;
  cost_usd: Record<string, number> | null;
  packed_tokens: number | null;
  stream: boolean;
  status: number;
  ending: string;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  calls: number | null;
  usage_is_estimated: boolean | null;
  actual_cost_usd: number | null;
  latency_s: number;
  first_byte_s: number | null;
  unverified: string | null;
  previous_arm: string | null;
  conversation_id: string | null;
  risk: string | null;
  familiarity: number | null;
  is_unfamiliar: boolean;
  candidates: Array<CandidateRecord> | null;
  stop: VerificationStop | null;
  budget: BudgetChange | null;
  explanation: string;
  threshold: number | null;
  best_arm: string | null;
  qualifying_arms: Array<string>;
  labels: Record<string, string>;
}

/** The arm that a verified policy asks first. */
export interface FirstStep {
  policy: string;
  arm: string;
}

/**
 * Accuracy and cost (USD per query) of a policy on held-out queries.
 *
 * Intervals come from resampled queries, and may be missing.
 */
export interface FrontierPoint {
  policy: string;
  accuracy: Measure;
  cost_usd: Measure;
  accuracy_interval: [number, number] | null;
  cost_usd_interval: [number, number] | null;
  versus_best: VersusBest | null;
}

/** Some keys, in the order of their names. */
export interface KeyPage {
  keys: Array<KeyView>;
  /** Number of all keys that match. */
  total: number;
  /** Value of `after` for the next page; null on the last one. */
  next: string | null;
}

/** A key, without its secret. */
export interface KeyView {
  /** The responsible person or group, for example an e-mail address. */
  owner: string | null;
  requests_per_minute: number | null;
  /** Tokens of requests and answers together. */
  tokens_per_minute: number | null;
  parallel_requests: number | null;
  budget: Budget | null;
  metadata: Record<string, string>;
  name: string;
  /** The last characters of the secret, by which people recognize it. */
  hint: string;
  status: "active" | "expired" | "revoked";
  team: string | null;
  is_admin: boolean;
  expires: string | null;
  revoked: string | null;
  created: string;
  /** Until when the secret before the last rotation is valid. */
  previous_until: string | null;
  models: Array<string> | null;
  policies: Array<string> | null;
  spent_month_usd: number;
  budget_state: BudgetView | null;
  /** The budget of the key's team, which its requests count towards too. */
  team_budget_state: BudgetView | null;
}

/** How many requests took how long, over time. */
export interface LatencyMap {
  bounds_s: Array<number>;
  counts: Array<Array<number>>;
}

/** A request that has ended; contains nothing of its content. */
export interface ListedRequest {
  id: string;
  request_id: string | null;
  time: number;
  key: string | null;
  team: string | null;
  path: string;
  model: string | null;
  deployment: string | null;
  arm: string | null;
  policy: string | null;
  reason: string | null;
  outcome: RequestOutcome;
  status: number;
  ending: string;
  error: string | null;
  attempts: number;
  latency_s: number;
  first_byte_s: number | null;
  cost_usd: number | null;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  candidates: number | null;
  unverified: string | null;
  conversation: string | null;
}

/** Sums over the requests of the last hour, as the overview has them. */
export interface LiveFigures {
  requests: number;
  failed: number;
  refused: number;
  cost_usd: number;
  p50_s: number | null;
  p95_s: number | null;
}

/** A page of the list, and the figures of the last hour. */
export interface LiveTraffic {
  requests: Array<ListedRequest>;
  newer: string | null;
  older: string | null;
  figures: LiveFigures;
}

/** A tool call with its arguments decoded. */
export interface LoggedCall {
  name: string;
  arguments: Record<string, unknown>;
}

/** Price of all tokens of a request with more than `above_prompt_tokens` prompt tokens. */
export interface LongPromptPrice {
  above_prompt_tokens: number;
  price: Price;
}

/** A measured number with its standard error and its number of queries. */
export interface Measure {
  value: number;
  stderr: number;
  n: number;
}

/** Sums over the requests of one model, policy, key or team. */
export interface NamedTraffic {
  requests: number;
  errors: number;
  unpriced: number;
  cost_usd: number;
  compared_usd: number;
  baseline_usd: number;
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  reasoning_tokens: number;
  candidates: number;
  unfamiliar: number;
  estimated: number;
  expected_correct: number;
  baseline_expected_correct: number;
  relative_accuracy: number | null;
  relative_accuracy_interval: [number, number] | null;
  feedback_correct: number;
  feedback_wrong: number;
  invalid_calls: number;
  tool_errors: number;
  repeated_calls: number;
  p50_s: number | null;
  p95_s: number | null;
  p99_s: number | null;
  name: string;
}

/** Traffic over time, in total and by model, policy, key and team. */
export interface Overview {
  summary: UsageSummary;
  period: Period;
  step_s: number;
  points: Array<TrafficPoint>;
  latencies: LatencyMap;
  total: Traffic;
  models: Array<NamedTraffic>;
  policies: Array<NamedTraffic>;
  keys: Array<NamedTraffic>;
  teams: Array<NamedTraffic>;
  baseline_model: string | null;
}

/** One slot as text, or a run of the template's own tokens, which has no slot. */
export interface PackedPiece {
  slot: TemplateSlot | null;
  text: string;
  tokens: number;
  is_cut: boolean;
}

/** The text and the features that a router's model sees of a conversation. */
export interface PackedView {
  pieces: Array<PackedPiece>;
  features: Record<string, number>;
  tokens: number;
  budget_tokens: number;
}

/** A time until now, and how it is divided. */
export type Period = "hour" | "day" | "month";

/** The measured results of one pool of models with one rule. */
export interface PoolFigures {
  arms: Array<string>;
  /** Choosing one arm, or verified answers; `once` for one arm. */
  kind: "once" | "verified";
  /** The rule, with differences from the best of all available models. */
  point: FrontierPoint;
}

/**
 * Price of a model: USD per million tokens, USD per hour of its machine, or both added up.
 *
 * A missing price is unknown and never 0. Both token prices, the hourly price, or all three are
 * required. Cached input and cache writes without their own price cost as much as other input.
 * Reasoning without its own price costs as much as other output.
 */
export interface Price {
  input_usd_per_mtok: number | null;
  output_usd_per_mtok: number | null;
  cached_input_usd_per_mtok: number | null;
  cache_write_usd_per_mtok: number | null;
  reasoning_usd_per_mtok: number | null;
  long_prompts: Array<LongPromptPrice>;
  /** Price of the machine that the arm runs on. */
  usd_per_hour: number | null;
}

/** Origin of an artifact: everything needed to reproduce it. */
export interface Provenance {
  created: string;
  commit: string;
  /** The training configuration, as YAML. */
  config: string;
  seed: number;
  /** Hash over all data files, in order of path. */
  data_sha256: string;
  versions: Record<string, string>;
}

/**
 * Reason why a model answered.
 *
 * `label` is what people read in a list of decisions. `policies.explanations` has the sentences.
 */
export type Reason = "threshold" | "drift" | "utility" | "argmax" | "policy" | "unread" |
  "unfamiliar" | "explored" | "sticky" | "switched" | "budget" | "pinned" | "chat" | "session" |
  "fallback" | "undecided" | "continued" | "unrouted" | "passed" | "verified" | "text" |
  "ungrounded";

/** The pool and the rule to use for a number of models. */
export interface Recommendation {
  kind: "once" | "verified";
  figures: PoolFigures;
  /**
   * Accuracy minus that of the best single model, on the queries that the choice of pool and rule
   * did not use.
   */
  unseen_difference: Measure;
}

/** What is known of one request: its row in the list, and its decision. */
export interface RequestDetails {
  request: ListedRequest | null;
  decision: ExplainedDecision | null;
  missing: string | null;
  conversation: Array<string>;
}

/**
 * Names that occur in the newest requests, the most frequent ones first.
 *
 * As in filters, `none` is for requests without a model or a policy, and the empty name is for
 * those without a key or a team.
 */
export interface RequestNames {
  models: Array<string>;
  policies: Array<string>;
  reasons: Array<string>;
  keys: Array<string>;
  teams: Array<string>;
}

/** How a request ended. */
export type RequestOutcome = "answered" | "failed" | "refused" | "left";

/** How a key is rotated. */
export interface Rotation {
  /** Time in seconds that the old secret stays valid. */
  overlap_s: number;
}

/** Who uses the page. */
export interface Session {
  key: string | null;
  is_admin: boolean;
  is_sandbox: boolean;
  reasons: Record<string, string>;
  keeps_content: boolean;
  model_name: string;
  policy_names: Record<string, string>;
  version: string;
}

/** Why no further arm was asked for a candidate answer. */
export type StopReason = "not_worth" | "sure" | "no_model_left" | "max_candidates" | "max_cost_usd"
  | "max_added_latency_s" | "deadline" | "shutdown";

/** Which model of a pool to use for a kind of task. */
export interface TaskAdvice {
  task: "coding" | "mcp" | "service" | "research";
  chosen: string | null;
  why: string;
  /** The most successful one first. */
  models: Array<TaskFigures>;
  /** Models of the pool without figures. */
  unknown: Array<string>;
}

/** What a model of the pool reached, at the pool's prices. */
export interface TaskFigures {
  model: string;
  success: number;
  low: number;
  high: number;
  usd_per_task: number | null;
  tasks: number;
  /** Benchmark, harness, date and origin. */
  source: string;
}

/** Some teams, in the order of their names. */
export interface TeamPage {
  teams: Array<TeamView>;
  /** Number of all teams that match. */
  total: number;
  /** Value of `after` for the next page; null on the last one. */
  next: string | null;
}

/** A team. */
export interface TeamView {
  /** The responsible person or group, for example an e-mail address. */
  owner: string | null;
  requests_per_minute: number | null;
  /** Tokens of requests and answers together. */
  tokens_per_minute: number | null;
  parallel_requests: number | null;
  budget: Budget | null;
  metadata: Record<string, string>;
  name: string;
  created: string;
  /** Number of keys that are not revoked. */
  keys: number;
  /** Spent in this calendar month (UTC). */
  spent_month_usd: number;
  budget_state: BudgetView | null;
}

/** Parts of the input that a template names in braces. */
export type TemplateSlot = "preamble" | "latest_user" | "tools" | "other_turns";

/**
 * Usage, with percentiles of the time to the end of the answer.
 *
 * They are None if no model was asked.
 */
export interface Traffic {
  requests: number;
  errors: number;
  unpriced: number;
  cost_usd: number;
  compared_usd: number;
  baseline_usd: number;
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  reasoning_tokens: number;
  candidates: number;
  unfamiliar: number;
  estimated: number;
  expected_correct: number;
  baseline_expected_correct: number;
  relative_accuracy: number | null;
  relative_accuracy_interval: [number, number] | null;
  feedback_correct: number;
  feedback_wrong: number;
  invalid_calls: number;
  tool_errors: number;
  repeated_calls: number;
  p50_s: number | null;
  p95_s: number | null;
  p99_s: number | null;
}

/** Sums over the requests of one bin. */
export interface TrafficPoint {
  requests: number;
  errors: number;
  unpriced: number;
  cost_usd: number;
  compared_usd: number;
  baseline_usd: number;
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  reasoning_tokens: number;
  candidates: number;
  unfamiliar: number;
  estimated: number;
  expected_correct: number;
  baseline_expected_correct: number;
  relative_accuracy: number | null;
  relative_accuracy_interval: [number, number] | null;
  feedback_correct: number;
  feedback_wrong: number;
  invalid_calls: number;
  tool_errors: number;
  repeated_calls: number;
  p50_s: number | null;
  p95_s: number | null;
  p99_s: number | null;
  start: number;
}

/** Why there is nothing to show. */
export interface Unavailable {
  unavailable: string;
}

/** Unit in which people read a policy's number. */
export type Unit = "share" | "points" | "usd";

/** A model that is served by name only, because no arm is used for it. */
export interface UnroutedModel {
  model: string;
  reason: string;
  remedy: string;
  is_unknown: boolean;
}

/** What requests have cost and how accurate their answers are expected to be, in words. */
export interface UsageSummary {
  sentence: string;
  details: Array<string>;
}

/**
 * Why the verification stopped, and what asking the best remaining arm would have meant.
 *
 * Without such an arm, and if its gain could not be estimated, the other fields are None.
 */
export interface VerificationStop {
  reason: StopReason;
  arm: string | null;
  expected_gain: number | null;
  expected_cost_usd: number | null;
}

/** What verified policies do with a request. */
export interface VerificationView {
  requested: string | null;
  unverified: string | null;
  expects_text: boolean;
  instead: Choice;
  explanation: string;
  chosen: FirstStep | null;
  first_steps: Array<FirstStep>;
}

/**
 * Comparison with the best single model on the same queries.
 *
 * `difference` is the accuracy minus that of the best single model. `cost_share` is the cost
 * divided by that of the best single model, or None if that model costs nothing.
 */
export interface VersusBest {
  difference: number;
  difference_interval: [number, number];
  cost_share: number | null;
  cost_share_interval: [number, number] | null;
}
