// Runs the scenario that the command line names, and prints what it returns as JSON.

export const [name, baseURL] = process.argv.slice(2);
export const apiKey = "client-key";

export const ASK = [{ role: "user", content: "What is the weather in Oslo?" }];
export const ASK_BOTH = [{ role: "user", content: "Please get weather and get time for Oslo" }];

export async function run(scenarios) {
  const result = await scenarios[name]();
  process.stdout.write(JSON.stringify(result));
}

/** What an error says to a program that catches it. */
export function described(error) {
  const { status, statusCode, code, type, param, message, responseBody } = error;
  return { kind: error.constructor.name, status, statusCode, code, type, param, message, responseBody };
}
