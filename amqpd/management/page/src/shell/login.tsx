import { useRef, useState } from "preact/hooks";
import { ApiError, errorText } from "../api/client";
import { login, loginMessage } from "./session";

function loginErrorText(error: unknown): string {
  if (!(error instanceof ApiError)) return errorText(error);
  if (error.status === 401 && error.reason.startsWith("Not ")) {
    return "This user cannot use the page: it needs one of the tags management, policymaker, monitoring or administrator.";
  }
  if (error.status === 401) return "Wrong user name or password. Some users, such as guest, can log in only from the broker's machine.";
  return errorText(error);
}

export function Login() {
  const [failure, setFailure] = useState("");
  const [busy, setBusy] = useState(false);
  const password = useRef<HTMLInputElement>(null);
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const fields = new FormData(event.currentTarget as HTMLFormElement);
    setBusy(true);
    setFailure("");
    try {
      await login(String(fields.get("username")), String(fields.get("password")));
    } catch (error) {
      setFailure(loginErrorText(error));
      setBusy(false);
      password.current?.select();
    }
  };
  return (
    <main class="login">
      <form onSubmit={(event) => void submit(event)}>
        <h1>amqpd</h1>
        {loginMessage.value && <p class="note">{loginMessage.value}</p>}
        <label>
          User
          <input name="username" autocomplete="username" required autofocus spellcheck={false} autocapitalize="none" />
        </label>
        <label>
          Password
          <input name="password" type="password" autocomplete="current-password" required ref={password} />
        </label>
        <p role="alert" class="bad">
          {failure}
        </p>
        <button class="primary" disabled={busy}>
          Log in
        </button>
      </form>
    </main>
  );
}
